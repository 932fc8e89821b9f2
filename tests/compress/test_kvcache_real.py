"""The default model on compressed caches: more bits, less loss."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tightfit.compress.kvcache import CacheFormat, PlanCache, continue_with, prefill

PROMPT, CONTINUATION = 136, 64


@pytest.mark.real
def test_loss_falls_with_bits_on_the_default_model() -> None:
    from pydoc_data.topics import topics

    from tightfit.workers.models import load_model

    loaded = load_model("smollm2-135m")
    model = loaded.model
    ids = loaded.tokenizer(topics["assert"] + topics["with"], return_tensors="pt").input_ids
    ids = ids[:, : PROMPT + CONTINUATION]
    state = prefill(model, ids[:, :PROMPT])
    rest = ids[:, PROMPT:]

    def logits(form: CacheFormat | None) -> Tensor:
        cache = PlanCache.from_prefill(state, [form] * len(state.keys))
        return continue_with(model, cache, rest).log_softmax(-1)

    with torch.no_grad():
        reference = model(ids, use_cache=False).logits[:, PROMPT:].log_softmax(-1)
    assert (logits(None) - reference).abs().max() < 1e-3

    def loss(form: CacheFormat) -> float:
        return float((reference.exp() * (reference - logits(form))).sum(-1).mean())

    assert loss(CacheFormat()) < 1e-5
    eight, four, two = (loss(CacheFormat(bits, bits, residual=0, sinks=0)) for bits in (8, 4, 2))
    assert eight < four < two
    assert eight < 1e-3
    assert loss(CacheFormat(keep=0.5)) < loss(CacheFormat(keep=0.25, residual=0))
