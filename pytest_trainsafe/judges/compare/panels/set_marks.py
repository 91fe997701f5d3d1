"""Where the program sets the attribute of a parameter that decides whether its gradient is reduced.

A mark such as `parameter.sequence_parallel = True` is set far from the condition that reads it, and
no recorded line leads there: both are found in the text of the program's files.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Collection, Iterator

from pytest_trainsafe.core.code_files import relative
from pytest_trainsafe.report.called import called_at, imported_by
from pytest_trainsafe.report.source import code_at
from pytest_trainsafe.report.syntax import Function, parsed

#: The most lines of one mark, and the most files that are searched.
MOST_LINES, MOST_FILES = 6, 60

#: How many callers up from the line that sets a mark are followed.
_LEVELS = 2

#: Attributes of every tensor, which are no marks.
_OF_TENSORS = frozenset({"grad", "data", "shape", "dtype", "device", "requires_grad", "is_leaf"})


def marks_read(path: str, line: int) -> list[str]:
    """The attributes that the condition at a line reads of a variable, in the order of its text.

    A function that the condition calls is read too, if its own file or its imports have it.
    """
    nodes = (node for node in ast.walk(parsed(path)) if isinstance(node, ast.If))
    tests = [node.test for node in nodes if node.lineno == line]
    found = [name for test in tests for name in _attributes(test)]
    for place in called_at(f"{path}:{line}") if tests else ():
        file, _, number = place.rpartition(":")
        if any(_is_called(test, file, int(number)) for test in tests):
            function = _function_at(file, int(number))
            found += [x for part in (function.body if function else ()) for x in _attributes(part)]
    return list(dict.fromkeys(name for name in found if name not in _OF_TENSORS))


def set_at(name: str, path: str, files: Collection[str]) -> list[str]:
    """The lines that set an attribute to a value, and those that call the functions around these.

    Those that call the functions around the calls come last.  Searches the file `path`, `files`,
    and what these import.
    """
    nearby = [path, *sorted(files)]
    imported = [each for file in nearby for each in imported_by(file)]
    searched = list({os.path.realpath(each): each for each in reversed([*nearby, *imported])})
    searched = [*reversed(searched)][:MOST_FILES]
    found = [
        (file, node)
        for file in searched
        for node in ast.walk(parsed(file))
        if isinstance(node, ast.stmt | ast.expr)
    ]
    lines = [f"{file}:{node.lineno}" for file, node in found if _sets(node, name)]
    last = lines
    for _ in range(_LEVELS):
        setters = {_around(line) for line in last} - {"", "__init__"}
        last = [
            f"{file}:{node.lineno}"
            for file, node in found
            if isinstance(node, ast.Call) and _name(node.func) in setters
        ]
        lines += sorted({*last} - {*lines}, key=lambda line: int(line.rpartition(":")[2]))
    return lines


def _attributes(node: ast.AST) -> Iterator[str]:
    """The attributes that an expression or a function reads of a variable other than `self`."""
    calls = [each for each in ast.walk(node) if isinstance(each, ast.Call)]
    for call in calls:
        reads = _name(call.func) in ("getattr", "hasattr") and len(call.args) > 1
        if reads and isinstance(call.args[1], ast.Constant):
            yield str(call.args[1].value)
    called = {id(call.func) for call in calls}
    for each in ast.walk(node):
        if not isinstance(each, ast.Attribute) or not isinstance(each.value, ast.Name):
            continue
        if each.value.id != "self" and id(each) not in called:
            yield each.attr


def _sets(node: ast.AST, name: str) -> bool:
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return any(isinstance(each, ast.Attribute) and each.attr == name for each in targets)
    if isinstance(node, ast.Call) and _name(node.func) == "setattr" and len(node.args) == 3:
        return isinstance(node.args[1], ast.Constant) and node.args[1].value == name
    return False


def _is_called(test: ast.AST, file: str, line: int) -> bool:
    function = _function_at(file, line)
    calls = (each for each in ast.walk(test) if isinstance(each, ast.Call))
    return function is not None and any(_name(call.func) == function.name for call in calls)


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _function_at(path: str, line: int) -> Function | None:
    nodes = (node for node in ast.walk(parsed(path)) if isinstance(node, Function))
    return next((node for node in nodes if node.lineno == line), None)


def is_about(place: str, name: str) -> bool:
    """Whether the innermost function around a "file:line" uses a variable or attribute `name`."""
    nodes = ast.walk(_function_around(place) or ast.Module([], []))
    return any(name in (getattr(node, "id", ""), getattr(node, "attr", "")) for node in nodes)


def _around(place: str) -> str:
    """The name of the innermost function around a "file:line"; "" for none."""
    function = _function_around(place)
    return "" if function is None else function.name


def _function_around(place: str) -> Function | None:
    path, _, line = place.rpartition(":")
    nodes = (node for node in ast.walk(parsed(path)) if isinstance(node, Function))
    inner = [node for node in nodes if node.lineno <= int(line) <= (node.end_lineno or 0)]
    return max(inner, key=lambda node: node.lineno, default=None)


def set_text(name: str, shown: str, lines: Collection[str]) -> str:
    """The note on the lines that set a mark, beside the one that is `shown`."""
    others = [_with_text(line) for line in lines if line != shown][: MOST_LINES - 1]
    more = f" and {len(lines) - MOST_LINES} more" if len(lines) > MOST_LINES else ""
    at = f"; set or passed on at {', '.join(others)}{more}" if others else ""
    return f"sets the mark {name!r} of a parameter, which the condition reads{at}"


def _with_text(place: str) -> str:
    """A "file:line" with its line, if that can be read."""
    code = code_at(place, "")
    text = "" if code is None else code.lines[int(place.rpartition(":")[2]) - code.first].strip()
    return f"{relative(place)} `{text}`" if text else relative(place)
