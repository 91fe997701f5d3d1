"""Finds the functions that a line of the tested program calls, from its text alone."""

from __future__ import annotations

import ast
import os
from pathlib import Path

from pytest_trainsafe.report.flow import FAR, distances
from pytest_trainsafe.report.syntax import Function, parsed

#: A call: how near its result is to what is returned, in each function on the way; its file and
#: line, and what is called.
_Call = tuple[tuple[int, ...], str, int, str]

#: The most functions of a place.
_MOST_CALLED = 16


def called_at(place: str, method: str = "forward") -> dict[str, str]:
    """The "file:line" of each function of the program that is called at a "file:line".

    Each has the line that calls it.

    That is by the statement there or, if a function begins there, by this function; then by the
    functions that are found.  The functions whose results reach what is returned through the fewest
    assignments come first, but after hooks that the function around the statement registers.  What
    such a function calls comes next, before what makes its arguments: it is computed later.
    `method` is that of a class whose `apply` is called.  A name that a file imports is looked for
    in the folders around the file.  {} for a place that cannot be read, or that begins a class.
    """
    path, _, digits = place.rpartition(":")
    tree, line = parsed(path), int(digits) if digits.isdecimal() else 0
    statements = (each for each in ast.walk(tree) if isinstance(each, ast.stmt))
    around = [each for each in statements if each.lineno <= line <= (each.end_lineno or 0)]
    around.sort(key=lambda each: (each.lineno, each.col_offset))
    if not around or isinstance(around[-1], ast.ClassDef):
        return {}
    functions = [each for each in around if isinstance(each, Function)]
    found: dict[str, str] = {}
    hooks = _hooks(functions[-1]) if functions else []
    left: list[_Call] = [((0,), path, at, name) for at, name in hooks]
    left += [((distance,), path, at, name) for distance, at, name in _calls(around[-1])]
    while left and len(found) < _MOST_CALLED:
        nearest = min(left, key=lambda each: (FAR in each[0], each[0]))  # of several the first
        left.remove(nearest)
        so_far, caller, number, name = nearest
        file, function = _function_of(caller, name, method)
        at = "" if function is None else f"{file}:{function.lineno}"
        if function is not None and at not in (place, *found):
            found[at] = f"{caller}:{number}"
            calls = _calls(function)
            left += [((*so_far, more), file, line, own) for more, line, own in calls]
    return found


def _function_of(
    path: str, name: str, method: str, imports: int = 3
) -> tuple[str, Function | None]:
    """The function that a file calls by `name`, and the file that has it; None if it is unknown.

    A name is that of a function, `self.f`, or `Class.apply`.  It is followed through so many
    `imports`.
    """
    owner, _, attribute = name.rpartition(".")
    for node in parsed(path).body:
        if isinstance(node, ast.ClassDef) and owner in ("self", node.name):
            wanted = method if owner != "self" and attribute == "apply" else attribute
            for own in node.body:
                if isinstance(own, Function) and own.name == wanted:
                    return path, own
        if isinstance(node, Function) and node.name == name:
            return path, node
        if isinstance(node, ast.ImportFrom) and imports:
            for each in node.names:
                if name in (each.asname or each.name, f"{each.asname or each.name}.apply"):
                    file = _module_file(path, node)
                    own_name = name.replace(each.asname or each.name, each.name, 1)
                    if file:
                        return _function_of(file, own_name, method, imports - 1)
    return path, None


def _module_file(path: str, node: ast.ImportFrom) -> str:
    """The file that an import names, in the folders around the importing file; "" for none."""
    parts = (node.module or "").split(".")
    folders = [*Path(path).absolute().parents]
    for folder in folders[node.level - 1 :][:1] if node.level else folders:
        file = folder.joinpath(*parts).with_suffix(".py")
        if file != Path(path).absolute() and file.is_file():
            return os.path.realpath(file)  # a file may be found through a link to its folder
    return ""


def imported_by(path: str) -> list[str]:
    """The files of the program that a file imports names from, in the folders around it."""
    nodes = (node for node in ast.walk(parsed(path)) if isinstance(node, ast.ImportFrom))
    return list(dict.fromkeys(file for node in nodes if (file := _module_file(path, node))))


def _hooks(function: Function) -> list[tuple[int, str]]:
    """What a function gives to calls of methods such as `register_step_post_hook`, and where.

    What runs after a step or a forward, nearer to its results, comes before what runs ahead of it.
    """
    calls = (each for each in ast.walk(function) if isinstance(each, ast.Call))
    found = [
        (call.func.attr, call.lineno, ast.unparse(given))
        for call in calls
        if isinstance(call.func, ast.Attribute) and call.func.attr.startswith("register_")
        for given in call.args
    ]
    found.sort(key=lambda each: "pre_hook" in each[0])  # stable
    return [(line, name) for _, line, name in found]


def _calls(node: ast.AST) -> list[tuple[int, int, str]]:
    """What a statement or function calls, as it is written, with the line.

    The first number of each is that of `flow.distances`, 0 in a statement.  Calls of a statement
    are in their order, those of a function in the opposite one.
    """
    of_function = distances(node) if isinstance(node, Function) else {}
    calls = [each for each in ast.walk(node) if isinstance(each, ast.Call)]
    last_first = -1 if of_function else 1  # of two that are as direct, the later is the nearer
    calls.sort(key=lambda each: (last_first * each.func.lineno, each.func.col_offset))
    return [
        (of_function.get(each, 0), each.func.lineno, ast.unparse(each.func))
        for each in calls
        if isinstance(each.func, ast.Name | ast.Attribute)
    ]
