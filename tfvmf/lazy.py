"""Modules that are imported when they are first used.

TensorFlow takes seconds to import. Names of methods, settings and their bounds are needed earlier,
but are declared next to code that uses TensorFlow; such modules import it lazily.
"""

import importlib
from collections import UserDict
from typing import Any, TypeVar

T = TypeVar("T")


class LazyModule:
    """Stands for a module and imports it on the first access to an attribute."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(self._name), attribute)


def lazy_import(*names: str) -> list[Any]:
    """One `LazyModule` per dotted name, in the same order."""
    return [LazyModule(name) for name in names]


class Registry(UserDict[str, T]):
    """Objects by name; one given as "module:attribute" is imported on first use."""

    def __init__(self, **entries: Any) -> None:
        super().__init__(entries)

    def __getitem__(self, name: str) -> T:
        entry = self.data[name]
        if isinstance(entry, str):
            module, _, attribute = entry.partition(":")
            entry = self.data[name] = getattr(importlib.import_module(module), attribute)
        return entry
