"""The lines of a class that change what its objects keep from one call to the next."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from pytest_trainsafe.report.syntax import Function

#: Methods of containers that change them.
_CHANGES = frozenset(
    (
        *("add", "append", "appendleft", "clear", "discard", "extend", "insert", "pop"),
        *("popitem", "popleft", "remove", "setdefault", "update"),
    )
)

_CONSTRUCTORS = frozenset({"__init__", "__post_init__", "reset_parameters"})


def kept_state(tree: ast.Module, function: Function) -> Iterator[int]:
    """The lines of a method that change attributes which other calls of the object find changed.

    These are the attributes that a method beside the constructor changes, and that some method
    reads.  Of a constructor, they are the lines that give them their first value.
    """
    cls = next((each for each in ast.walk(tree) if _has(each, function)), None)
    if cls is None:
        return
    methods = [each for each in cls.body if isinstance(each, Function)]
    later = [each for each in methods if each.name not in _CONSTRUCTORS]
    changed = {name for method in later for name, _ in _changes(method)}
    kept = changed & {name for method in methods for name in _reads(method)}
    yield from (line for name, line in _changes(function) if name in kept)


def _has(node: ast.AST, function: Function) -> bool:
    """Whether a node is a class that has this method; the syntax may be of another parse."""
    return isinstance(node, ast.ClassDef) and any(
        isinstance(each, Function) and (each.lineno, each.name) == (function.lineno, function.name)
        for each in node.body
    )


def _changes(method: Function) -> Iterator[tuple[str, int]]:
    """The attributes of `self` that a method assigns or changes, with the lines."""
    for node in ast.walk(method):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign | ast.Delete):
            targets = node.targets
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets = [node.target]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in _CHANGES:
                targets = [node.func.value]
        for target in targets:
            parts = target.elts if isinstance(target, ast.Tuple) else [target]
            for part in parts:
                while isinstance(part, ast.Subscript | ast.Starred):
                    part = part.value
                if name := _own(part):
                    yield name, target.lineno


def _reads(method: Function) -> Iterator[str]:
    nodes = (node for node in ast.walk(method) if isinstance(node, ast.Attribute))
    return (_own(node) for node in nodes if isinstance(node.ctx, ast.Load))


def _own(node: ast.AST) -> str:
    """The name of an attribute of `self`; "" for anything else."""
    of_self = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    return node.attr if of_self and node.value.id == "self" else ""
