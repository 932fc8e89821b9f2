"""Looking at the inputs of a model's matrices, or changing them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import nn

Hook = Callable[[nn.Module, tuple[Any, ...]], tuple[Any, ...] | None]
"""Called with module and inputs; what it returns takes the place of the inputs, None leaves them."""


@contextmanager
def input_hooks(model: nn.Module, hooks: Mapping[str, Hook]) -> Iterator[None]:
    """Call hooks before every forward of these modules, while the context lasts.

    Args:
        model: any model.
        hooks: by the module's path.
    """
    handles = [model.get_submodule(path).register_forward_pre_hook(hook) for path, hook in hooks.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
