"""What can be chosen, and what each choice costs in bytes.

Pure data and integer arithmetic: sites, options, decisions, spaces, plans, budgets, memory and
target rules. Nothing here imports torch or transformers, so a model's memory is known from its
``config.json`` in milliseconds. Everything else in Tightfit builds on this package, and it builds
on nothing of ours.

To add an option kind, give it a name and exact bytes beside :mod:`tightfit.spaces.options` and a
quantizer in :mod:`tightfit.compress`; to add a model family, one entry in
:data:`tightfit.spaces.families.FAMILIES`; to add a target, one in
:data:`tightfit.spaces.targets.TARGETS`.
"""

from tightfit.spaces.budget import Budget, Part
from tightfit.spaces.decisions import Choice, Decision, build_decisions, expand
from tightfit.spaces.errors import InfeasibleError, InputError, TightfitError, suggest
from tightfit.spaces.fallbacks import fallbacks
from tightfit.spaces.families import FAMILIES, read_geometry
from tightfit.spaces.geometry import EMBED, HEAD, Attention, Geometry, Linear
from tightfit.spaces.ggml import GGML_TYPES, GgmlOption, GgmlType
from tightfit.spaces.kv import KV_BITS, KV_GROUPS, KvOption
from tightfit.spaces.kv_rules import KvRules, kv_sites
from tightfit.spaces.memory import PLAIN, Load, kv_bytes, longest_context, overhead_bytes, prefill_bytes
from tightfit.spaces.options import BITS, GROUPS, ZEROS, Option, WeightOption, Zero, read_option
from tightfit.spaces.plan import PLAN_VERSION, Plan
from tightfit.spaces.rules import USUAL_TYPES, WeightRules, match_counts
from tightfit.spaces.space import Space, build_space
from tightfit.spaces.targets import TARGETS, Target, get_target
from tightfit.spaces.units import format_size, parse_size

__all__ = [
    "BITS", "EMBED", "FAMILIES", "GGML_TYPES", "GROUPS", "HEAD", "KV_BITS", "KV_GROUPS", "PLAIN",
    "PLAN_VERSION", "TARGETS", "USUAL_TYPES", "ZEROS", "Attention", "Budget", "Choice", "Decision",
    "Geometry", "GgmlOption", "GgmlType", "InfeasibleError", "InputError", "KvOption", "KvRules",
    "Linear", "Load", "Option", "Part", "Plan", "Space", "Target", "TightfitError", "WeightOption",
    "WeightRules", "Zero", "build_decisions", "build_space", "expand", "fallbacks", "format_size",
    "get_target", "kv_bytes", "kv_sites", "longest_context", "match_counts", "overhead_bytes", "parse_size",
    "prefill_bytes", "read_geometry", "read_option", "suggest",
]  # fmt: skip
