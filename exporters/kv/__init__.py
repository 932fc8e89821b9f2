"""Handing the KV part of a plan on: what every layer's cache is stored as.

:mod:`.cache_folder` writes an artefact, the caches that were measured with the code that makes them, for
Transformers. The others are recipes for tools that have caches of their own: :mod:`.kvpress`, :mod:`.vllm`
and :mod:`.llamacpp` write the arguments that come nearest to the plan, what of it they leave out, and how
many bytes that makes. :mod:`.layers` is what they share.

Weights go their own way; the exporters for them take plans with caches too and ship the weights alone.
"""
