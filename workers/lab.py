"""Train the lab model: a small float32 Llama-style model for claims about unquantized sources.

    python -m tightfit.workers.lab

trains it in about ten minutes from text that ships with CPython, saves it as an ordinary
model folder in the cache, and prints its perplexity beside a bigram model's. The alias ``lab`` loads
it. The tests' models come from the same code with the smaller recipe :data:`TINY`:

    folder = train(TINY)              # trained in seconds the first time, then found in the cache
    loaded = load_model(str(folder))  # tightfit.workers.models

The language reference is not trained on: plans are measured on it.
"""

from __future__ import annotations

import hashlib
import json
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tightfit.workers.corpus import MODULES, read_modules
from tightfit.workers.ngram import bigram_perplexity
from tightfit.workers.reading import PYTHON_DOCS, Document
from tightfit.workers.sources import build_once, cache_folder
from tightfit.workers.text import deduplicate, load_text

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import LlamaForCausalLM

_SCORES = "scores.json"
_SCORED_TOKENS = 16384
_TINY_MODULES = """
argparse asyncio codecs collections configparser datetime difflib email enum functools http importlib inspect
json logging pickle random shutil socket statistics subprocess threading typing unittest urllib xml
"""


@dataclass(frozen=True)
class Recipe:
    """Everything that decides what is trained; equal recipes give equal models on one machine.

    Attributes:
        modules: standard-library modules whose docstrings and comments are the text.
        vocab: tokens of the byte-level BPE, trained on the same text.
        hidden: width of the residual stream; ``hidden / heads`` is the width of a head.
        mlp: width of the MLP.
        blocks: decoder blocks.
        heads: query heads.
        kv_heads: heads of keys and values.
        sequence: tokens per training sequence, and the longest context the model knows.
        batch: sequences per step.
        steps: optimizer steps.
        learning_rate: its peak, see :class:`tightfit.workers.training.Schedule`.
        seed: of weights, held-out documents and batches.
        threads: torch threads; another number adds up in another order.
        version: raised whenever the code changes what is trained.
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
    threads: int = 1
    version: int = 2

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
        """SHA-256 of the recipe and of the Python version, whose standard library is the text."""
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
    batch=2,
    steps=2400,
    learning_rate=2e-3,
)
"""The lab model; every width is a multiple of 128, hidden and MLP of 256."""

TINY = Recipe(
    modules=tuple(_TINY_MODULES.split()),
    vocab=512,
    hidden=64,
    mlp=128,
    blocks=3,
    heads=2,
    kv_heads=1,
    sequence=64,
    batch=8,
    steps=800,
    learning_rate=8e-3,
)
"""What the tests measure on."""


@dataclass(frozen=True)
class Score:
    """What a model is worth on a text it has not seen.

    Attributes:
        text: ``modules``, held out from the training text, or the language reference ``python-docs``.
        perplexity: of the model, per token.
        bigram: of a smoothed bigram model of the same training text, on the same tokens.
        tokens: number of tokens.
    """

    text: str
    perplexity: float
    bigram: float
    tokens: int


@dataclass(frozen=True)
class Training:
    """Scores of a trained model, and the wall-clock seconds that its training took."""

    scores: tuple[Score, ...]
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


def read_training(folder: Path) -> Training:
    """Return what training a model folder gave."""
    content = json.loads((folder / _SCORES).read_text(encoding="utf-8"))
    return Training(tuple(Score(**score) for score in content["scores"]), content["seconds"])


def split_corpus(recipe: Recipe) -> tuple[list[Document], list[Document]]:
    """Return the documents to train on, and the one in twenty that are held out."""
    documents = deduplicate(read_modules(recipe.modules)).documents
    order = np.random.default_rng([recipe.seed, 1]).permutation(len(documents))
    count = max(1, len(documents) // 20)
    return [documents[i] for i in sorted(order[count:])], [documents[i] for i in sorted(order[:count])]


def _train_into(folder: Path, recipe: Recipe, report: Callable[[str], None]) -> None:
    from tightfit.workers.training import Schedule, encode, fit, fixed_threads, perplexity, train_tokenizer

    begin = time.perf_counter()
    training, heldout = (_texts(part) for part in split_corpus(recipe))
    tokenizer = train_tokenizer(training, recipe.vocab)
    ids = encode(tokenizer, training)
    unseen = {"modules": heldout, PYTHON_DOCS: _texts(load_text(PYTHON_DOCS).documents)}
    report(f"{len(ids):,} tokens to train on")
    schedule = Schedule(recipe.sequence, recipe.batch, recipe.steps, recipe.learning_rate, recipe.seed)
    scores = []
    with fixed_threads(recipe.threads):
        model = fit(recipe.config(), ids, schedule, report)
        for name, texts in unseen.items():
            tokens = encode(tokenizer, texts)[: _SCORED_TOKENS + 1]
            tokens = tokens[: (len(tokens) - 1) // recipe.sequence * recipe.sequence + 1]
            own = perplexity(model, tokens, recipe.sequence)
            bigram = bigram_perplexity(ids, tokens, recipe.vocab)
            scores.append(Score(name, own, bigram, len(tokens) - 1))
    _save(folder, recipe, model, tokenizer)
    _write_json(folder / _SCORES, asdict(Training(tuple(scores), time.perf_counter() - begin)))


def _texts(documents: Sequence[Document]) -> list[str]:
    return [document.text for document in documents]


def _save(folder: Path, recipe: Recipe, model: LlamaForCausalLM, tokenizer: Tokenizer) -> None:
    import transformers
    from safetensors.torch import save_file

    from tightfit.workers.training import END

    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    wrap: Any = transformers.PreTrainedTokenizerFast  # its constructor has no types
    wrapped = wrap(tokenizer_object=tokenizer, eos_token=END, clean_up_tokenization_spaces=False)
    wrapped.save_pretrained(folder)
    _write_json(folder / "config.json", recipe.config())


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def main() -> None:
    """Train the lab model, or find it in the cache, and print what it is worth."""
    folder = train(LAB, report=lambda line: print(line, flush=True))
    training = read_training(folder)
    print(f"{folder}: trained in {training.seconds / 60:.1f} min")
    for score in training.scores:
        print(
            f"{score.text}: perplexity {score.perplexity:.1f} on {score.tokens:,} unseen tokens, "
            f"{score.bigram:.1f} with a bigram model"
        )


if __name__ == "__main__":
    main()
