"""llama.cpp itself: what a GGUF file really loses, and how fast it really is.

The library is the one that the ``xllamacpp`` wheel brings, called through its C interface.
:mod:`~tightfit.workers.llamacpp.structs` mirrors the structs of ``llama.h``,
:mod:`~tightfit.workers.llamacpp.engine` calls the functions, and both need nothing but Python, so that a
process that only measures memory stays small; :mod:`~tightfit.workers.llamacpp.library` finds the wheel.

:mod:`~tightfit.workers.llamacpp.model` gives the log-probabilities of a file and
:mod:`~tightfit.workers.llamacpp.loss` the measurement that they make.
:mod:`~tightfit.workers.llamacpp.bench` measures speed and memory, every file in fresh processes of
:mod:`~tightfit.workers.llamacpp.child`; :mod:`~tightfit.workers.llamacpp.speed` is what comes of it, and
:mod:`~tightfit.workers.llamacpp.station` does the same on another machine of a Ray cluster. Nothing here
knows how a GGUF file is written.
"""
