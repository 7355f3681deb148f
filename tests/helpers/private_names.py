"""Looks for names that a library calls private: in the syntax tree, and on the classes themselves.

Three ways to depend on one: to import it, to read `object._name` of an object that is not `self`,
and to derive from a class and use or override what it keeps under an underscore.
"""

import ast
import functools
import importlib
import inspect
import pathlib
import textwrap

# Everything below these is private, whatever it is called.
PRIVATE_MODULES = ("keras.src", "tensorflow.python", "tensorflow_probability.python")
# Underscores that are no secret: Python's documentation describes them.
DOCUMENTED = {"_replace", "_asdict", "_fields", "_make", "os._exit"}
# "Subclasses are expected to implement a leading-underscore version of the same-named function"
# (tfp.distributions.Distribution), and the two that `validate_args` calls.
HOOKS = {
    "tensorflow_probability": {
        "_log_prob", "_mean", "_covariance", "_entropy", "_sample_n",
        "_sample_control_dependencies", "_parameter_control_dependencies",
    }
}  # fmt: skip


def is_private(name: str) -> bool:
    """An underscore in front, but not two, as `__init__` has."""
    return name.startswith("_") and not name.startswith("__") and name != "_"


def in_source(source: str, *, ours: frozenset[str] = frozenset()) -> list[str]:
    """Imports and accesses of private names, as `line: what`; `ours` are classes and modules."""
    found = []
    for node in ast.walk(ast.parse(source)):
        for name in _private(node, ours):
            found.append(f"{node.lineno}: {name}")
    return found


def _private(node: ast.AST, ours: frozenset[str]) -> list[str]:
    if isinstance(node, ast.Import):
        names = {alias.name for alias in node.names} - ours
        return [name for name in sorted(names) if _is_private_path(name)]
    if isinstance(node, ast.ImportFrom):
        paths = [f"{node.module or ''}.{alias.name}" for alias in node.names]
        return [path for path in paths if _is_private_path(path)]
    if isinstance(node, ast.Attribute) and is_private(node.attr):
        owner = ast.unparse(node.value)
        mine = owner in ("self", "cls") or owner in ours
        if mine or {node.attr, f"{owner}.{node.attr}"} & DOCUMENTED:
            return []
        return [f"{owner}.{node.attr}"]
    if isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "setattr", "hasattr"):
        _, name, *_ = node.args
        if isinstance(name, ast.Constant) and is_private(str(name.value)):
            return [ast.unparse(node)]
    return []


def _is_private_path(path: str) -> bool:
    """Whether a module's or an imported object's dotted path leads through something private."""
    below = any(f"{path}.".startswith(f"{module}.") for module in PRIVATE_MODULES)
    return below or any(is_private(part) for part in path.split("."))


def class_names(paths: list[pathlib.Path]) -> frozenset[str]:
    """Names of the classes that some files define."""
    trees = (ast.parse(path.read_text()) for path in paths)
    return frozenset(
        node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)
    )


def in_class(cls: type, *, package: str) -> list[str]:
    """What a class uses or overrides of a base that is not of this package nor of Python's."""
    ours = [base for base in cls.__mro__ if _room(base) == package]
    foreign = [base for base in cls.__mro__ if base not in ours and _is_library(base)]
    if not foreign:
        return []
    hooks = set().union(*(HOOKS.get(_room(base), set()) for base in foreign))
    defined = set().union(*(_written(base) for base in ours))
    theirs = set().union(*(_written(base) | {*vars(base)} for base in foreign))
    wrong = {
        name
        for name in _written(cls) | _used(cls)
        if is_private(name) and (name in theirs or name not in defined)
    }
    return sorted(f"{cls.__qualname__}.{name}" for name in wrong - hooks)


def _room(cls: type) -> str:
    return cls.__module__.partition(".")[0]


def _is_library(cls: type) -> bool:
    """Installed, not of the standard library."""
    file = getattr(importlib.import_module(cls.__module__), "__file__", None)
    return file is not None and "site-packages" in file


@functools.cache
def _written(cls: type) -> frozenset[str]:
    """Names that a class's source defines, or assigns to `self` in a method."""
    body = getattr(_tree(cls), "body", [])
    statements = body[0].body if body else []
    names = {statement.name for statement in statements if hasattr(statement, "name")}
    for statement in statements:
        targets = getattr(statement, "targets", [getattr(statement, "target", None)])
        names |= {target.id for target in targets if isinstance(target, ast.Name)}
    stores = (node for node in _of_self(cls) if isinstance(node.ctx, ast.Store))
    return frozenset(names | {node.attr for node in stores})


def _used(cls: type) -> frozenset[str]:
    """Names that a class reads from, or assigns to, `self`, `cls` or `super()`."""
    return frozenset(node.attr for node in _of_self(cls))


def _of_self(cls: type) -> list[ast.Attribute]:
    nodes = (node for node in ast.walk(_tree(cls)) if isinstance(node, ast.Attribute))
    return [node for node in nodes if ast.unparse(node.value) in ("self", "cls", "super()")]


@functools.cache
def _tree(cls: type) -> ast.AST:
    try:
        return ast.parse(textwrap.dedent(inspect.getsource(cls)))
    except (OSError, TypeError):  # of C, or made by a function
        return ast.Module([], [])
