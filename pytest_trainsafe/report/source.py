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

#: The number of lines before and after the one that matters.
AROUND = 6

#: The most lines of a function that are shown.
MOST_LINES = 40

#: The most bytes of a file of which lines are shown, of one in which functions are looked for, and
#: the most characters of a line.
_MOST, _PARSED, _LINE = 2_000_000, 400_000, 200

_Function = ast.FunctionDef | ast.AsyncFunctionDef


def code_at(place: str, title: str, note: str = "", methods: Sequence[str] = ()) -> Code | None:
    """The lines around a "file:line"; None if they cannot be read.

    Of a line that begins a function the lines are those of the function.  Of a line that begins a
    class they are those of the first of `methods` that the class defines itself, which `note` then
    names: "forward of" and the note.
    """
    path, _, digits = place.rpartition(":")
    if not path or not digits.isdecimal() or len(digits) > 7:
        return None
    try:
        content = read_file(Path(path), max_bytes=_MOST)
    except (OSError, ValueError):
        return None
    lines = content.decode("utf-8", "backslashreplace").splitlines()
    at = int(digits)
    if not 1 <= at <= len(lines):
        return None
    first, last = max(1, at - AROUND), at + AROUND
    function = _function(content, at, methods)
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


def called_at(place: str, method: str = "forward") -> list[str]:
    """The "file:line" of each function of the same file that is called at a place.

    That is by the statement there or, if a function begins there, by this function; then by the
    functions that are found.  Hooks that the function around the statement registers come first.
    `method` is that of a class whose `apply` is called.  [] for a place that cannot be read, or
    that begins a class.
    """
    path, _, digits = place.rpartition(":")
    try:
        tree = ast.parse(read_file(Path(path), max_bytes=_PARSED))
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return []
    line = int(digits) if digits.isdecimal() else 0
    statements = (each for each in ast.walk(tree) if isinstance(each, ast.stmt))
    around = [each for each in statements if each.lineno <= line <= (each.end_lineno or 0)]
    around.sort(key=lambda each: (each.lineno, each.col_offset))
    statement = around[-1] if around else None
    if statement is None or isinstance(statement, ast.ClassDef):
        return []
    known = _named_functions(tree, method)
    functions = [each for each in around if isinstance(each, _Function)]
    hooks = _hooks(functions[-1]) if functions else []
    found = {known[name].lineno: None for name in hooks if name in known}
    left = [statement]
    while left:
        for called in _calls(left.pop(0)):
            function = known.get(called)
            if function is not None and function.lineno not in (line, *found):
                found[function.lineno] = None
                left.append(function)
    return [f"{path}:{number}" for number in found]


def _named_functions(tree: ast.AST, method: str) -> dict[str, _Function]:
    """The functions of a file by what calls them: `f`, `self.f`, or `Class.apply` for `method`."""
    named: dict[str, _Function] = {}
    for each in _definitions(tree):
        if isinstance(each, ast.ClassDef):
            for own in each.body:
                if isinstance(own, _Function):
                    named[f"{each.name}.apply" if own.name == method else f"self.{own.name}"] = own
    for each in tree.body if isinstance(tree, ast.Module) else ():
        if isinstance(each, _Function):
            named[each.name] = each
    return named


def _hooks(function: _Function) -> list[str]:
    """What a function gives to calls of methods such as `register_step_post_hook`."""
    calls = (each for each in ast.walk(function) if isinstance(each, ast.Call))
    return [
        ast.unparse(given)
        for call in calls
        if isinstance(call.func, ast.Attribute) and call.func.attr.startswith("register_")
        for given in call.args
    ]


def _calls(node: ast.AST) -> list[str]:
    """What a statement or function calls, as it is written, in the order of the lines."""
    calls = [each.func for each in ast.walk(node) if isinstance(each, ast.Call)]
    calls.sort(key=lambda each: (each.lineno, each.col_offset))
    return [ast.unparse(each) for each in calls if isinstance(each, ast.Name | ast.Attribute)]


def _function(content: bytes, at: int, methods: Sequence[str]) -> _Function | None:
    """The function that begins at a line, or the method of the class that begins there."""
    if len(content) > _PARSED:
        return None
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    for node in _definitions(tree):
        if at not in (node.lineno, *(each.lineno for each in node.decorator_list)):
            continue
        if not isinstance(node, ast.ClassDef):
            return node
        own = {each.name: each for each in node.body if isinstance(each, _Function)}
        return next((own[name] for name in methods if name in own), None)
    return None


def _definitions(tree: ast.AST) -> Iterator[_Function | ast.ClassDef]:
    return (node for node in ast.walk(tree) if isinstance(node, _Function | ast.ClassDef))
