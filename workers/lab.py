"""Train the lab model: a small float32 Llama-style model for claims about unquantized sources.

    python -m tightfit.workers.lab

trains it in about ten minutes on two cores from text that ships with CPython, saves it as an ordinary
model folder in the cache, and prints its perplexity on held-out text beside a bigram model's. The
alias ``lab`` loads it. The tests' models come from the same code with the smaller recipe :data:`TINY`.

The language reference is not trained on: plans are measured on it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tightfit.workers.corpus import MODULES, read_modules
from tightfit.workers.ngram import bigram_perplexity
from tightfit.workers.reading import Document
from tightfit.workers.sources import build_once, cache_folder
from tightfit.workers.text import deduplicate

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from tokenizers import Tokenizer
    from torch import Tensor
    from transformers import LlamaForCausalLM

END = "<|endoftext|>"
_SCORES = "training.json"


@dataclass(frozen=True)
class Recipe:
    """Everything that decides what is trained; equal recipes give equal models on one machine.

    Attributes:
        modules: standard-library modules whose docstrings and comments are the text.
        vocab: tokens of the byte-level BPE, trained on the same text.
        hidden: width of the residual stream; ``hidden / heads`` is the width of a head.
        mlp: width of the MLP.
        blocks: decoder blocks.
        heads: query heads; ``kv_heads`` of keys and values.
        sequence: tokens per training sequence, and the longest context the model knows.
        batch: sequences per step.
        steps: optimizer steps.
        learning_rate: peak of AdamW's learning rate, after a linear warm-up, before a cosine decay.
        seed: of weights, held-out documents and batches.
        threads: torch threads, fixed because they change the order of sums.
        version: raised whenever the code below changes what is trained.
    """

    modules: tuple[str, ...]
    vocab: int
    hidden: int
    mlp: int
    blocks: int
    heads: int
    kv_heads: int
    sequence: int
    batch: int
    steps: int
    learning_rate: float
    seed: int = 0
    threads: int = 2
    version: int = 1

    def config(self) -> dict[str, Any]:
        """Return the content of the model's ``config.json``."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "attention_bias": False,
            "bos_token_id": None,
            "dtype": "float32",
            "eos_token_id": 0,
            "head_dim": self.hidden // self.heads,
            "hidden_act": "silu",
            "hidden_size": self.hidden,
            "intermediate_size": self.mlp,
            "max_position_embeddings": self.sequence,
            "mlp_bias": False,
            "model_type": "llama",
            "num_attention_heads": self.heads,
            "num_hidden_layers": self.blocks,
            "num_key_value_heads": self.kv_heads,
            "rms_norm_eps": 1e-5,
            "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
            "tie_word_embeddings": True,
            "vocab_size": self.vocab,
        }

    def digest(self) -> str:
        """SHA-256 of the recipe and the Python version, whose standard library is the text."""
        content = {**asdict(self), "python": platform.python_version()}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


LAB = Recipe(
    modules=MODULES,
    vocab=2048,
    hidden=256,
    mlp=768,
    blocks=8,
    heads=4,
    kv_heads=2,
    sequence=256,
    batch=8,
    steps=900,
    learning_rate=2e-3,
)
"""The lab model: 6.8 million weights."""

TINY = Recipe(
    modules=("argparse", "decimal", "difflib", "inspect", "logging", "threading", "typing", "_pydecimal"),
    vocab=512,
    hidden=64,
    mlp=128,
    blocks=3,
    heads=2,
    kv_heads=1,
    sequence=64,
    batch=16,
    steps=300,
    learning_rate=6e-3,
    threads=1,
)
"""What the tests measure on: trained in seconds."""


@dataclass(frozen=True)
class Scores:
    """What a trained model is worth, on documents it has not seen.

    Attributes:
        perplexity: of the model, per token.
        bigram: of a smoothed bigram model of the training text, on the same tokens.
        tokens: number of held-out tokens scored.
        seconds: wall-clock time of the training.
    """

    perplexity: float
    bigram: float
    tokens: int
    seconds: float


def train(recipe: Recipe, report: Callable[[str], None] = lambda line: None) -> Path:
    """Return the model folder of a recipe, trained the first time it is asked for.

    Args:
        recipe: what to train.
        report: called with a line of progress now and then.

    Raises:
        InputError: the sources of the standard library are not there.
    """
    final = cache_folder() / "models" / f"lab-{recipe.digest()[:16]}"
    return build_once(final, lambda folder: _train_into(folder, recipe, report))


def read_scores(folder: Path) -> Scores:
    """Return the scores that training wrote into a model folder."""
    return Scores(**json.loads((folder / _SCORES).read_text(encoding="utf-8"))["scores"])


def _train_into(folder: Path, recipe: Recipe, report: Callable[[str], None]) -> None:
    begin = time.perf_counter()
    training, heldout = split_corpus(recipe)
    tokenizer = train_tokenizer(training, recipe.vocab)
    ids, unseen = encode(tokenizer, training), encode(tokenizer, heldout)
    report(f"text: {len(ids):,} tokens to train on, {len(unseen):,} held out")
    with _threads(recipe.threads):
        model = _fit(recipe, ids, report)
        perplexity, tokens = _perplexity(model, unseen, recipe.sequence)
    bigram = bigram_perplexity(ids, unseen[: tokens + 1], recipe.vocab)
    scores = Scores(perplexity, bigram, tokens, time.perf_counter() - begin)
    _save(folder, recipe, model, tokenizer, scores)


def split_corpus(recipe: Recipe) -> tuple[list[Document], list[Document]]:
    """Return the documents to train on and those held out, about one in twenty."""
    documents = deduplicate(read_modules(recipe.modules)).documents
    order = np.random.default_rng([recipe.seed, 1]).permutation(len(documents))
    count = max(1, len(documents) // 20)
    return [documents[i] for i in sorted(order[count:])], [documents[i] for i in sorted(order[:count])]


def train_tokenizer(documents: list[Document], vocab: int) -> Tokenizer:
    """Train a byte-level BPE of exactly ``vocab`` tokens; the first one ends a document."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((document.text for document in documents), trainer)
    return tokenizer


def encode(tokenizer: Tokenizer, documents: list[Document]) -> NDArray[np.int64]:
    """Token ids of all documents in a row, int64, each ended by token 0."""
    parts = [[*encoded.ids, 0] for encoded in tokenizer.encode_batch([d.text for d in documents])]
    return np.concatenate([np.asarray(part, dtype=np.int64) for part in parts])


def _fit(recipe: Recipe, ids: NDArray[np.int64], report: Callable[[str], None]) -> LlamaForCausalLM:
    """Train with AdamW on random pieces of the text."""
    import torch

    model = _initialize(recipe)
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), weight_decay=0.1)
    starts = np.random.default_rng([recipe.seed, 3])
    begin = time.perf_counter()
    for step in range(recipe.steps):
        optimizer.param_groups[0]["lr"] = recipe.learning_rate * _schedule(step / recipe.steps)
        at = starts.integers(len(ids) - recipe.sequence, size=recipe.batch)
        batch = torch.from_numpy(np.stack([ids[i : i + recipe.sequence + 1] for i in at]))
        loss = _loss(model, batch)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if (step + 1) % max(1, recipe.steps // 20) == 0:
            left = (time.perf_counter() - begin) / (step + 1) * (recipe.steps - step - 1)
            report(f"step {step + 1}/{recipe.steps}: loss {loss.item():.3f} nats, {left / 60:.1f} min left")
    return model.eval()


def _initialize(recipe: Recipe) -> LlamaForCausalLM:
    """A model with normal weights of deviation 0.02, narrower where a matrix writes to the stream."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(LlamaConfig.from_dict(recipe.config()))
    generator = torch.Generator().manual_seed(recipe.seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2:
                writes = name.endswith(("o_proj.weight", "down_proj.weight"))
                deviation = 0.02 / math.sqrt(2 * recipe.blocks) if writes else 0.02
                parameter.normal_(0.0, deviation, generator=generator)
    return model.train()


def _schedule(done: float) -> float:
    """Share of the peak learning rate: 5 % linear warm-up, then a cosine down to a tenth."""
    return min(done / 0.05, 0.55 + 0.45 * math.cos(math.pi * done)) if done else 0.01


def _loss(model: LlamaForCausalLM, batch: Tensor) -> Tensor:
    """Mean negative log-likelihood in nats of all but the first token; batch × (sequence + 1) ids."""
    import torch

    logits = model(batch[:, :-1], use_cache=False).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())


def _perplexity(model: LlamaForCausalLM, ids: NDArray[np.int64], sequence: int) -> tuple[float, int]:
    """Perplexity over consecutive sequences, and the number of tokens scored."""
    import torch

    count = min(64, (len(ids) - 1) // sequence)
    rows = [torch.from_numpy(ids[i * sequence : (i + 1) * sequence + 1]) for i in range(count)]
    with torch.no_grad():
        losses = [_loss(model, row[None]).item() for row in rows]
    return math.exp(sum(losses) / count), count * sequence


def _save(
    folder: Path, recipe: Recipe, model: LlamaForCausalLM, tokenizer: Tokenizer, scores: Scores
) -> None:
    from safetensors.torch import save_file
    from transformers import PreTrainedTokenizerFast

    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        clean_up_tokenization_spaces=False,
        model_max_length=recipe.sequence,
    ).save_pretrained(folder)
    _write_json(folder / "config.json", recipe.config())
    _write_json(folder / _SCORES, {"recipe": asdict(recipe), "scores": asdict(scores)})


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """Use a fixed number of torch threads."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def main() -> None:
    """Train the lab model, or find it in the cache, and print what it is worth."""
    folder = train(LAB, report=lambda line: print(line, flush=True))
    scores = read_scores(folder)
    print(f"{folder}: trained in {scores.seconds / 60:.1f} min")
    print(
        f"perplexity on {scores.tokens:,} held-out tokens: {scores.perplexity:.1f} (bigram {scores.bigram:.1f})"
    )


if __name__ == "__main__":
    main()
