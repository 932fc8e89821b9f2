"""Measuring: models, text, and the loss of a plan.

:mod:`~tightfit.workers.sources` finds a model's files and :mod:`~tightfit.workers.models` loads them;
:mod:`~tightfit.workers.text` splits documents into four disjoint parts;
:class:`~tightfit.workers.evaluator.Evaluator` measures a plan against the uncompressed model's own
predictions, reading packed matrices from an :class:`~tightfit.workers.option_cache.OptionCache`, and
returns a :class:`~tightfit.workers.measurement.Measurement` with one loss per document.

A :class:`~tightfit.workers.crew.Crew` measures many plans: one evaluator in this process, or the workers
of a :class:`~tightfit.workers.pool.RayPool`. From the outside in: the pool hands out jobs and lets a
:mod:`~tightfit.workers.ledger` decide what is tried again, its :mod:`~tightfit.workers.staff` hires and
replaces workers, a :mod:`~tightfit.workers.hand` is one of them as the pool sees it, a
:mod:`~tightfit.workers.worker` what runs in its process, built from a :mod:`~tightfit.workers.recipe`;
:mod:`~tightfit.workers.cluster` is the Ray they live in, which :mod:`~tightfit.workers.guard` ends with us.

:mod:`~tightfit.workers.lab` trains the small models that claims and tests can rest on without any
download. :mod:`~tightfit.workers.llamacpp` runs GGUF files in llama.cpp. Nothing here knows how plans are
found.
"""
