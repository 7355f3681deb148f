"""Modules that are imported when they are first used.

TensorFlow takes seconds to import. What a program needs before that (names of methods, settings
and their bounds) is declared beside code that uses TensorFlow; such a module imports it lazily.
"""

import importlib
from typing import Any


class LazyModule:
    """Stands for a module; the first access to an attribute imports it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(self._name), attribute)


def lazy_import(*names: str) -> list[Any]:
    """One `LazyModule` per dotted name, in the same order."""
    return [LazyModule(name) for name in names]
