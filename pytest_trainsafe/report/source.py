"""Lines of the tested program at a "file:line", as a panel."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

from pytest_trainsafe.core.code_files import relative
from pytest_trainsafe.core.untrusted import read_file
from pytest_trainsafe.printable import printable
from pytest_trainsafe.report.panels import Code
from pytest_trainsafe.report.sections import label
from pytest_trainsafe.report.syntax import Function, parsed, syntax_of

#: The number of lines before and after the one that matters, and the most lines before it of the
#: function that it is in, which are shown from the function's beginning.
AROUND, BEFORE = 6, 24

#: The most lines of a function that are shown.
MOST_LINES = 40

#: The most bytes of a file of which lines are shown, and the most characters of a line.
_MOST, _LINE = 2_000_000, 200


def code_at(place: str, title: str, note: str = "", methods: Sequence[str] = ()) -> Code | None:
    """The lines around a "file:line"; None if they cannot be read.

    Of a line that begins a function the lines are those of the function.  Of a line that begins a
    class they are those of the first of `methods` that the class defines itself, which `note` then
    names: "forward of" and the note.
    """
    path, at = _split(place)
    if not at:
        return None
    try:
        content = read_file(Path(path), max_bytes=_MOST)
    except (OSError, ValueError):
        return None
    lines = content.decode("utf-8", "backslashreplace").splitlines()
    if at > len(lines):
        return None
    first, last = max(1, at - AROUND), at + AROUND
    tree = syntax_of(content)
    around = _innermost(tree, at)
    begin = at if around is None else around.lineno
    first = min(first, begin) if at - begin <= BEFORE else first
    function = _function(tree, at, methods)
    if function is not None:
        begin = min([function.lineno, *(each.lineno for each in function.decorator_list)])
        if note and not begin <= at <= function.lineno:
            note = f"{function.name} of {note}"
        at, first = function.lineno, begin
        last = min(function.end_lineno or at, first + MOST_LINES - 1)
    return Code(
        title=title,
        file=label(relative(f"{path}:{at}")),
        first=first,
        lines=tuple(
            printable(each[:_LINE].expandtabs(4))[:_LINE] for each in lines[first - 1 : last]
        ),
        marked=at,
        note=note,
    )


def method_at(place: str, methods: Sequence[str]) -> tuple[str, str]:
    """The "file:line" and the name of the first of `methods` that a class at a "file:line" defines.

    "" for both if no class begins there, or it defines none of them.
    """
    path, at = _split(place)
    found = _function(parsed(path), at, methods) if at else None
    if found is None or found.name not in methods or at >= found.lineno:
        return "", ""
    return f"{path}:{found.lineno}", found.name


def assigned_at(place: str, method: str) -> str:
    """The "file:line" that assigns the variable that a call of `method` at a "file:line" is given.

    It is the last before the call in the same function, and may call methods of the variable for
    its value alone.  "" if the call is given anything else than a variable.
    """
    path, at = _split(place)
    if not at:
        return ""
    tree = parsed(path)
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == method
        and node.lineno <= at <= (node.end_lineno or at)
    ]
    if len(calls) != 1 or len(calls[0].args) != 1 or calls[0].keywords:
        return ""
    given: ast.expr = calls[0].args[0]
    while isinstance(given, ast.Call) and isinstance(given.func, ast.Attribute):
        if given.args or given.keywords or given.func.attr not in ("detach", "clone", "item"):
            return ""
        given = given.func.value
    if not isinstance(given, ast.Name):
        return ""
    lines = [
        node.lineno
        for node in ast.walk(_innermost(tree, at) or tree)
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name) and target.id == given.id and node.lineno < at
    ]
    return f"{path}:{max(lines)}" if lines else ""


def _split(place: str) -> tuple[str, int]:
    """The path and the line of a "file:line"; the line is 0 if `place` is none."""
    path, _, digits = place.rpartition(":")
    return path, int(digits) if path and digits.isdecimal() and len(digits) <= 7 else 0


def _innermost(tree: ast.AST, at: int) -> Function | None:
    """The innermost function around a line; None if there is none."""
    around = (
        node
        for node in _definitions(tree)
        if isinstance(node, Function) and node.lineno <= at <= (node.end_lineno or 0)
    )
    return max(around, key=lambda node: node.lineno, default=None)


def _function(tree: ast.AST, at: int, methods: Sequence[str]) -> Function | None:
    """The function that begins at a line, or the method of the class that begins there."""
    for node in _definitions(tree):
        if at not in (node.lineno, *(each.lineno for each in node.decorator_list)):
            continue
        if not isinstance(node, ast.ClassDef):
            return node
        own = {each.name: each for each in node.body if isinstance(each, Function)}
        return next((own[name] for name in methods if name in own), None)
    return None


def _definitions(tree: ast.AST) -> Iterator[Function | ast.ClassDef]:
    return (node for node in ast.walk(tree) if isinstance(node, Function | ast.ClassDef))
