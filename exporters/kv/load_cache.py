"""Run a model on the compressed KV cache of a plan. Needs torch and transformers, and nothing else.

    python load_cache.py MODEL_FOLDER "Once upon a time" --tokens 40

Or with this folder on the path of Python: ``from load_cache import generate``. The code of the cache is in
the folder ``kvcache`` beside this file, what every layer is stored as in ``cache.json``.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from kvcache import CacheFormat, PlanCache, attention_of, prefill  # type: ignore[import-not-found]
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

HERE = Path(__file__).parent


def load_formats(folder: Path = HERE) -> list[CacheFormat]:
    """Return the format of every layer's cache, in depth order."""
    layers = json.loads((folder / "cache.json").read_text(encoding="utf-8"))["layers"]
    return [CacheFormat(**layer["format"]) for layer in layers]


def prefill_and_compress(
    model: PreTrainedModel, ids: torch.Tensor, folder: Path = HERE
) -> tuple[PlanCache, torch.Tensor]:
    """Run prompts of one length, (batch, tokens), and compress what they leave behind.

    Returns:
        The cache, and the logits of the last position, (batch, vocabulary).
    """
    state = prefill(model, ids)
    return PlanCache.from_prefill(state, load_formats(folder)), state.logits


@torch.no_grad()
def generate(
    model: PreTrainedModel, ids: torch.Tensor, tokens: int = 40, folder: Path = HERE
) -> torch.Tensor:
    """Return prompts of one length, (batch, tokens), with the likeliest continuation of at least 2 tokens."""
    with attention_of(model):
        cache, logits = prefill_and_compress(model, ids, folder)
        ids = torch.cat([ids, logits.argmax(-1, keepdim=True)], 1)
        text: torch.Tensor = model.generate(  # type: ignore[operator]
            ids, past_key_values=cache, max_new_tokens=tokens - 1, do_sample=False
        )
    return text


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Continue a prompt on the compressed KV cache of a plan.")
    parser.add_argument("model", help="folder of the model that the plan was searched for")
    parser.add_argument("prompt")
    parser.add_argument("--tokens", type=int, default=40, help="how many to generate, at least 2")
    given = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(given.model)
    prompt = tokenizer(given.prompt, return_tensors="pt").input_ids
    loaded = AutoModelForCausalLM.from_pretrained(given.model, dtype="auto")
    print(tokenizer.decode(generate(loaded, prompt, given.tokens)[0], skip_special_tokens=True))
