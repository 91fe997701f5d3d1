"""The expressions of an FX graph's text: a whitelist of syntax, turned into arguments."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Collection

from pytest_trainsafe.judges.refine.errors import GraphError
from pytest_trainsafe.judges.refine.graphs.graph import SYMBOLIC, Argument, Ref, Word

#: An annotation such as "f32[8, 16]", perhaps with strides and a device behind it.
_ANNOTATION = re.compile(
    r"(b8|i64|i32|i16|i8|u8|f16|bf16|f32|f64|f8\w*|c64|c128)(?:\[([^\]]{0,400})\]|\()"
)
_SYMBOLIC = re.compile(r"Sym\((.{1,400})\)")
#: A comma between sizes, not between the arguments of a function such as Mod(s0, 2).
_COMMA = re.compile(r",(?![^()]*\))")
_NUMBERS = {"inf": math.inf, "nan": math.nan}
_CONSTANTS = {"math.inf": math.inf, "math.nan": math.nan, "torch.inf": math.inf}
#: Names of dtypes, layouts, memory formats and operators, which are kept as words.
_WORD = re.compile(r"torch\.(ops\.[\w.]+|[a-z_0-9]+)")
_LARGEST = 1 << 63


class RefusedError(GraphError):
    """An expression outside the whitelist; the text says which."""


#: A dtype, a shape, and the shape with symbolic sizes if it has any; None if not stated.
Stated = tuple[str | None, tuple[int, ...] | None, tuple[int | str, ...] | None]


def annotation(node: ast.expr | None) -> Stated:
    """What an annotation states: "f32[2*s0, 16]" a tensor, "Sym(2*s0)" a size."""
    if node is None:
        return None, None, None
    if not (isinstance(node, ast.Constant) and isinstance(node.value, str)):
        raise RefusedError("an annotation that is not a string")
    if symbolic := _SYMBOLIC.fullmatch(node.value):
        return SYMBOLIC, None, (symbolic.group(1),)
    match = _ANNOTATION.match(node.value)
    if match is None:
        raise RefusedError(f"the annotation {node.value[:60]!r}")
    dtype, sizes = match.groups()
    if sizes is None:
        return dtype, None, None
    parts = [part.strip() for part in _COMMA.split(sizes) if part.strip()]
    if not all(part.isdecimal() and len(part) < 19 for part in parts):
        found = [int(part) if part.isdecimal() and len(part) < 19 else part for part in parts]
        return dtype, None, tuple(found)
    return dtype, tuple(map(int, parts)), None


def dotted(node: ast.expr) -> str | None:
    """The text of a name with dots, such as torch.ops.aten.mm.default."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return None
    return ".".join(reversed([*parts, node.id]))


def value(node: ast.expr, known: Collection[str]) -> Argument:
    """An argument; `known` are the names of earlier nodes.  Raises RefusedError."""
    if isinstance(node, ast.Constant):
        return _constant(node)
    if isinstance(node, ast.Name):
        if node.id in known:
            return Ref(node.id)
        if node.id in _NUMBERS:
            return _NUMBERS[node.id]
        raise RefusedError(f"the name {node.id[:60]}, which no earlier line defines")
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        number = value(node.operand, known)
        if isinstance(number, int | float) and not isinstance(number, bool):
            return -number
        raise RefusedError("a minus before something that is not a number")
    if isinstance(node, ast.List | ast.Tuple):
        return tuple(value(each, known) for each in node.elts)
    if isinstance(node, ast.Attribute):
        return _attribute(node)
    if isinstance(node, ast.Call) and dotted(node.func) in ("device", "torch.device"):
        return Word("device")
    raise RefusedError(f"an expression of the form {type(node).__name__}")


def _constant(node: ast.Constant) -> Argument:
    found = node.value
    if isinstance(found, bool | float | str) or found is None:
        return found
    if isinstance(found, int) and abs(found) <= _LARGEST:
        return found
    raise RefusedError(f"a constant of type {type(found).__name__} or of this size")


def _attribute(node: ast.Attribute) -> Argument:
    name = dotted(node)
    if name in _CONSTANTS:
        return _CONSTANTS[name]
    if name is not None and _WORD.fullmatch(name):
        return Word(name)
    raise RefusedError(f"the attribute {(name or '')[:60]}")
