"""The lines of a class that change what its objects keep from one call to the next."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TypeGuard

from pytest_trainsafe.report.syntax import Function, parsed

#: Methods of containers that change them.
_CHANGES = frozenset(
    (
        *("add", "append", "appendleft", "clear", "discard", "extend", "insert", "pop"),
        *("popitem", "popleft", "remove", "setdefault", "update"),
    )
)

_CONSTRUCTORS = frozenset({"__init__", "__post_init__", "reset_parameters"})


def kept_state(tree: ast.Module, function: Function) -> Iterator[int]:
    """The lines of the class of a method that change attributes which later calls find changed.

    These are the attributes that a method beside the constructor changes, and that some method, or
    something else in the file, reads.  In the constructor, they are given their first value.  The
    lines of `function` that read one are among them.
    """
    cls = next((each for each in ast.walk(tree) if _has(each, function)), None)
    methods = [each for each in getattr(cls, "body", ()) if isinstance(each, Function)]
    later = [each for each in methods if each.name not in _CONSTRUCTORS]
    changed = {name for method in later for name, _ in _changes(method)}
    kept = changed & {each.attr for each in ast.walk(tree) if _is_read(each)}
    yield from (line for each in methods for name, line in _changes(each) if name in kept)
    yield from (line for name, line in _reads(function) if name in kept)


def begins_at(path: str, line: int) -> int:
    """The line where a constructor gives what a method at a line reads, and keeps, its first value.

    0 if the method reads nothing that is kept.
    """
    tree = parsed(path)
    inside = [
        each
        for each in ast.walk(tree)
        if isinstance(each, Function) and each.lineno <= line <= (each.end_lineno or 0)
    ]
    function = max(inside, key=lambda each: each.lineno, default=None)
    if function is None or function.name in _CONSTRUCTORS:
        return 0
    cls = next((each for each in ast.walk(tree) if _has(each, function)), None)
    methods = [each for each in getattr(cls, "body", ()) if isinstance(each, Function)]
    kept = {*kept_state(tree, function)}
    read = {name for name, _ in _reads(function)} | {name for name, _ in _changes(function)}
    first = [
        at
        for each in methods
        if each.name == "__init__"
        for name, at in _changes(each)
        if name in read and at in kept
    ]
    return min(first, default=0)


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
        elif (container := _changed_container(node)) is not None:
            targets = [container]
        for target in targets:
            parts = target.elts if isinstance(target, ast.Tuple) else [target]
            for part in parts:
                while isinstance(part, ast.Subscript | ast.Starred):
                    part = part.value
                if name := _own(part):
                    yield name, target.lineno


def _changed_container(node: ast.AST) -> ast.expr | None:
    """What a call such as `self.found.append(x)` changes; None for anything else."""
    function = node.func if isinstance(node, ast.Call) else None
    if isinstance(function, ast.Attribute) and function.attr in _CHANGES:
        return function.value
    return None


def _is_read(node: ast.AST) -> TypeGuard[ast.Attribute]:
    return isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)


def _reads(method: Function) -> Iterator[tuple[str, int]]:
    """The attributes of `self` that a method reads, with the lines."""
    for node in ast.walk(method):
        if _is_read(node) and _own(node):
            yield _own(node), node.lineno


def _own(node: ast.AST) -> str:
    """The name of an attribute of `self`; "" for anything else."""
    if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name):
        return ""
    return node.attr if node.value.id == "self" else ""
