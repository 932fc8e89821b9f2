"""Tightfit: the best compression plan that fits a language model into a memory budget."""

__version__ = "0.1.0"
