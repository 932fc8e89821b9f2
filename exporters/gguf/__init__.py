"""Writing a model as one GGUF file, as llama.cpp loads it.

An artefact: the file holds the very blocks that were measured. :mod:`.architectures` knows how
llama.cpp names and shifts the tensors of each family and what it takes for granted, :mod:`.metadata`
and :mod:`.rotary` which numbers it wants beside them, :mod:`.tokenizer` and :mod:`.pretokenizers` how
text becomes tokens, :mod:`.tensors` reads what goes in, :mod:`.checks` and :mod:`.refusals` say no, and
:mod:`.writer` puts the file together.

To add a family, write one entry in :data:`.architectures.ARCHITECTURES` and a case in the test that
compares losses with llama.cpp's.
"""

from __future__ import annotations

from tightfit.exporters.gguf.architectures import ARCHITECTURES, gguf_name
from tightfit.exporters.gguf.checks import check, check_shape
from tightfit.exporters.gguf.writer import export, file_bytes, predicted_bytes

__all__ = ["ARCHITECTURES", "check", "check_shape", "export", "file_bytes", "gguf_name", "predicted_bytes"]
