"""Train a small Llama from token ids: nothing here knows what it is trained for."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM

if TYPE_CHECKING:
    from numpy.typing import NDArray

END = "<|endoftext|>"
"""The token with id 0, which ends every document."""


@dataclass(frozen=True)
class Schedule:
    """How long and how fast to train.

    Attributes:
        sequence: tokens per training sequence.
        batch: sequences per step.
        steps: optimizer steps.
        learning_rate: its peak, after 5 % of linear warm-up and before a cosine down to a tenth.
        seed: of the initial weights and the batches.
    """

    sequence: int
    batch: int
    steps: int
    learning_rate: float
    seed: int

    def rate(self, step: int) -> float:
        """Learning rate of a step, counted from 0."""
        done = (step + 1) / self.steps
        return self.learning_rate * min(done / 0.05, 0.55 + 0.45 * math.cos(math.pi * done))


def train_tokenizer(texts: Iterable[str], vocab: int) -> Tokenizer:
    """Train a byte-level BPE of at most ``vocab`` tokens, :data:`END` first."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def encode(tokenizer: Tokenizer, texts: Sequence[str]) -> NDArray[np.int64]:
    """Token ids of all texts in a row, int64, each ended by :data:`END`."""
    end = tokenizer.token_to_id(END)
    return np.asarray(
        [i for encoded in tokenizer.encode_batch(texts) for i in (*encoded.ids, end)], dtype=np.int64
    )


def fit(
    config: Mapping[str, Any], ids: NDArray[np.int64], schedule: Schedule, report: Callable[[str], None]
) -> LlamaForCausalLM:
    """Train a Llama from nothing with AdamW on random pieces of a text.

    Args:
        config: content of its ``config.json``.
        ids: token ids of the text, int64.
        schedule: how long and how fast.
        report: called with a line of progress twenty times.
    """
    model = initialize(config, schedule.seed)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.99), weight_decay=0.1, fused=True)
    generator = np.random.default_rng([schedule.seed, 2])
    begin = time.perf_counter()
    for step in range(schedule.steps):
        optimizer.param_groups[0]["lr"] = schedule.rate(step)
        starts = generator.integers(len(ids) - schedule.sequence, size=schedule.batch)
        batch = np.stack([ids[start : start + schedule.sequence + 1] for start in starts])
        loss = _loss(model, torch.from_numpy(batch))
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if (step + 1) % max(1, schedule.steps // 20) == 0:
            left = (time.perf_counter() - begin) * (schedule.steps / (step + 1) - 1)
            report(f"step {step + 1}/{schedule.steps}: {loss.item():.2f} nats, {left:.0f} s left")
    model.train(False)
    return model


def initialize(config: Mapping[str, Any], seed: int) -> LlamaForCausalLM:
    """Make a model whose matrices keep the size of their input, less where they add to the stream."""
    model = LlamaForCausalLM(LlamaConfig.from_dict(dict(config)))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2:
                adds = name.endswith(("o_proj.weight", "down_proj.weight"))
                variance = 1 / parameter.shape[1] / (2 * config["num_hidden_layers"] if adds else 1)
                parameter.normal_(0.0, math.sqrt(variance), generator=generator)
    return model


def perplexity(model: LlamaForCausalLM, ids: NDArray[np.int64], sequence: int) -> float:
    """Perplexity of all whole sequences of a text, each read on its own."""
    count = (len(ids) - 1) // sequence
    rows = [torch.from_numpy(ids[i * sequence : (i + 1) * sequence + 1]) for i in range(count)]
    with torch.no_grad():
        return math.exp(sum(_loss(model, row[None]).item() for row in rows) / count)


@contextmanager
def fixed_threads(count: int) -> Iterator[None]:
    """Use a number of torch threads: another number adds up in another order."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _loss(model: LlamaForCausalLM, batch: Tensor) -> Tensor:
    """Mean negative log-likelihood in nats of all but the first token; batch × (sequence + 1) ids."""
    logits = model(batch[:, :-1], use_cache=False).logits
    return cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
