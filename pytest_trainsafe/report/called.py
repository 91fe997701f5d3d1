"""Finds the functions that a line of the tested program calls, from its text alone."""

from __future__ import annotations

import ast
from pathlib import Path

from pytest_trainsafe.report.syntax import Function, parsed

#: The most functions of a place.
_MOST_CALLED = 16


def called_at(place: str, method: str = "forward") -> dict[str, str]:
    """The "file:line" of each function of the program that is called at a "file:line".

    Each has the line that calls it.

    That is by the statement there or, if a function begins there, by this function; then by the
    functions that are found.  Hooks that the function around the statement registers come first.
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
    left = [(path, *call) for call in (_hooks(functions[-1]) if functions else [])]
    left += [(path, *call) for call in _calls(around[-1])]
    while left and len(found) < _MOST_CALLED:
        caller, number, name = left.pop(0)
        file, function = _function_of(caller, name, method)
        at = "" if function is None else f"{file}:{function.lineno}"
        if function is not None and at not in (place, *found):
            found[at] = f"{caller}:{number}"
            left += [(file, *call) for call in _calls(function)]
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
            return str(file)
    return ""


def _hooks(function: Function) -> list[tuple[int, str]]:
    """What a function gives to calls of methods such as `register_step_post_hook`, and where."""
    calls = (each for each in ast.walk(function) if isinstance(each, ast.Call))
    return [
        (call.lineno, ast.unparse(given))
        for call in calls
        if isinstance(call.func, ast.Attribute) and call.func.attr.startswith("register_")
        for given in call.args
    ]


def _calls(node: ast.AST) -> list[tuple[int, str]]:
    """What a statement or function calls, as it is written, with the line, in their order."""
    calls = [each.func for each in ast.walk(node) if isinstance(each, ast.Call)]
    calls.sort(key=lambda each: (each.lineno, each.col_offset))
    named = [each for each in calls if isinstance(each, ast.Name | ast.Attribute)]
    return [(each.lineno, ast.unparse(each)) for each in named]
