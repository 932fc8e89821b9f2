"""Measuring: models, text, and the loss of a plan.

:mod:`~tightfit.workers.sources` finds a model's files and :mod:`~tightfit.workers.models` loads them;
:mod:`~tightfit.workers.text` splits documents into four disjoint parts;
:class:`~tightfit.workers.evaluator.Evaluator` measures a plan against the uncompressed model's own
predictions, reading packed matrices from an :class:`~tightfit.workers.option_cache.OptionCache`, and
returns a :class:`~tightfit.workers.measurement.Measurement` with one loss per document.
:mod:`~tightfit.workers.lab` trains the small models that claims and tests can rest on without any
download. Nothing here knows how plans are found.
"""
