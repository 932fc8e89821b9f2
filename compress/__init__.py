"""Carrying options out on a torch model.

Quantizers turn a matrix and an option into a :class:`PackedTensor` that holds exactly the bytes the
option charges and can be read back; :class:`Replica` puts matrices into a model and takes them back;
:mod:`tightfit.compress.statistics` looks at activations once, for quantizers that weigh errors by
them. To add a quantizer, write one module with a function like
:func:`tightfit.compress.integer.quantize` and name it in :mod:`tightfit.compress.catalogue`.
"""

from tightfit.compress.apply import Replica, check_geometry
from tightfit.compress.catalogue import QUANTIZER_VERSION, compress_matrix
from tightfit.compress.packed import PackedTensor, pack_codes, unpack_codes
from tightfit.compress.statistics import input_energy, watch_inputs

__all__ = [
    "QUANTIZER_VERSION",
    "PackedTensor",
    "Replica",
    "check_geometry",
    "compress_matrix",
    "input_energy",
    "pack_codes",
    "unpack_codes",
    "watch_inputs",
]
