"""A KV cache that is really stored compressed, each layer in its own way.

This folder needs torch and transformers and nothing else: it is shipped beside a plan, so that the cache
that was measured is the cache that runs. A prompt goes through the model uncompressed
(:func:`prefill`); :meth:`PlanCache.from_prefill` stores what it left behind in the formats of a plan, one
:class:`CacheFormat` per layer; the model then continues on that cache, by :func:`continue_with` over a known
text or by ``model.generate`` inside :func:`attention_of`::

    with attention_of(model):
        state = prefill(model, prompt)
        cache = PlanCache.from_prefill(state, formats)
        first = state.logits.argmax(-1, keepdim=True)
        model.generate(torch.cat([prompt, first], 1), cache=cache, do_sample=False)

(``past_key_values=cache`` in earlier releases of transformers.) Prompts of one batch have equal lengths:
padding is not masked.
"""

from .attention import attention_of
from .cache import PlanCache, continue_with
from .formats import CacheFormat
from .prompt import OBSERVED, Prefilled, prefill

__all__ = [
    "OBSERVED",
    "CacheFormat",
    "PlanCache",
    "Prefilled",
    "attention_of",
    "continue_with",
    "prefill",
]
