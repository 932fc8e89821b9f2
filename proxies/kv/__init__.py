"""Which layers need their KV cache: proxies from one prompt, and published rules that share a budget.

- *Proxies*: :mod:`~tightfit.proxies.kv.attention` (where the last queries look),
  :mod:`~tightfit.proxies.kv.retention` (how much of that a number of tokens retains),
  :mod:`~tightfit.proxies.kv.similarity` (how little a block changes its hidden states),
  :mod:`~tightfit.proxies.kv.errors` (what storing does to keys, values and attention's output).
- *Rules*: :mod:`~tightfit.proxies.kv.allocators` turns a proxy, a :class:`Menu` of options with their bytes
  and a budget into one option per layer.
- *Rank*: :mod:`~tightfit.proxies.kv.rank` stores fewer numbers instead of fewer bits, to compare
  at equal bytes.

The names below need no torch; proxies that do are imported from their own modules. To add a rule, write
its function and name it in :data:`ALLOCATORS`.
"""

from tightfit.proxies.kv.allocators import ALLOCATORS, Allocator
from tightfit.proxies.kv.menu import Menu, Precision
from tightfit.proxies.kv.retention import Retention, allocate_tokens, retention_curve
from tightfit.proxies.kv.uniform import ends_plans, uniform_plans

__all__ = [
    "ALLOCATORS",
    "Allocator",
    "Menu",
    "Precision",
    "Retention",
    "allocate_tokens",
    "ends_plans",
    "retention_curve",
    "uniform_plans",
]
