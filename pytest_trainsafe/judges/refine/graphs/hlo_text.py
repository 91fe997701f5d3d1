"""Reads the text of an XLA HLO module: one program, which every rank executes.

Each instruction becomes one or more ATen operators; the last of them has its name, so relations
name tensors as the text does.  A constant whose values are elided is an unknown constant, for
which the user gives a relation.  The text is parsed by patterns and never executed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence

from pytest_trainsafe.core.untrusted import shown
from pytest_trainsafe.judges.refine.errors import GraphError
from pytest_trainsafe.judges.refine.graphs.graph import (
    CONSTANT,
    INPUT,
    Argument,
    Graph,
    Node,
    Ref,
    Word,
)

#: The most characters of one line.
MAX_LINE = 1 << 18
_DTYPES = {"f16": "f16", "bf16": "bf16", "f32": "f32", "f64": "f64", "pred": "b8", "s32": "i32",
           "s64": "i64", "u32": "i64", "s8": "i8", "u8": "u8"}  # fmt: skip
_TORCH = {"f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64", "b8": "bool",
          "i32": "int32", "i64": "int64", "i8": "int8", "u8": "uint8"}  # fmt: skip
_HEAD = re.compile(r"(ENTRY )?%?([\w.-]+) \(.*\) -> .+ \{")
_LINE = re.compile(
    r"(ROOT )?%?([\w.-]+) = (\(.*?\)|[a-z0-9]+\[[\d,]*\](?:\{[\d,]*\})?) "
    r"([a-z-]+)\((.*?)\)((?:, .*)?)"
)
_TYPE = re.compile(r"([a-z0-9]+)\[([\d,]*)\]")
_ATTRIBUTE = re.compile(r", ([a-z_]+)=(\{\{[\d,{}]*\}\}|\{[^{}]*\}|[^,{}]+)")
#: How XLA counts the items of long lists.
_COMMENT = re.compile(r"/\*index=\d+\*/")
_RANGE = re.compile(r"\[(\d+):(\d+)(?::(\d+))?\]")

#: Operators by elements.
_ELEMENTS = {
    "add": "add.Tensor", "subtract": "sub.Tensor", "multiply": "mul.Tensor",
    "divide": "div.Tensor", "maximum": "maximum.default", "minimum": "minimum.default",
    "power": "pow.Tensor_Tensor", "and": "bitwise_and.Tensor", "or": "bitwise_or.Tensor",
    "not": "bitwise_not.default", "negate": "neg.default", "exponential": "exp.default",
    "log": "log.default", "sine": "sin.default", "cosine": "cos.default",
    "logistic": "sigmoid.default", "tanh": "tanh.default", "rsqrt": "rsqrt.default",
    "sqrt": "sqrt.default", "abs": "abs.default", "select": "where.self", "copy": "alias.default",
}  # fmt: skip
#: Reductions by the root of their computation, with the value that changes nothing.
_REDUCTIONS = {"add": ("sum.dim_IntList", 0.0), "maximum": ("amax.default", -math.inf),
               "minimum": ("amin.default", math.inf)}  # fmt: skip
_COLLECTIVES = {"add": "sum", "maximum": "max", "minimum": "min"}

Handler = Callable[["_Reader", "_Instruction"], None]


class _Instruction:
    """One line: a result with its type, an operator with operands and attributes."""

    def __init__(self, match: re.Match[str]) -> None:
        self.root, self.name, kind, self.operator, operands, rest = match.groups()
        found = _TYPE.match(kind)
        self.dtype = _DTYPES.get(found.group(1)) if found else None
        self.shape = _numbers(found.group(2)) if found else ()
        self.text = operands
        self.operands = [part.strip().split(" ")[-1].lstrip("%") for part in operands.split(", ")]
        self.attributes = dict(_ATTRIBUTE.findall(rest))

    def numbers(self, name: str) -> tuple[int, ...]:
        return _numbers(self.attributes.get(name, "").strip("{}"))


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(",") if part.strip().isdecimal())


def parse_hlo(text: str, name: str = "module") -> Graph:
    """The graph of an HLO module's entry.  Raises GraphError for what it does not know."""
    return _Reader(name).read(text)


def is_hlo(text: str) -> bool:
    """Whether a text is that of an HLO module."""
    return text.lstrip().startswith("HloModule")


class _Reader:
    def __init__(self, name: str) -> None:
        self.name = name
        self.line = 0
        self.nodes: list[Node] = []
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.values: dict[str, float] = {}
        self.roots: dict[str, str] = {}
        self.outputs: tuple[str, ...] = ()

    def read(self, text: str) -> Graph:
        computation, entry = "", False
        for number, line in enumerate(text.split("\n"), 1):
            self.line, stripped = number, _COMMENT.sub("", line).strip()
            if len(stripped) > MAX_LINE:
                raise self.refused("a line that is too long")
            if head := _HEAD.fullmatch(stripped):
                entry, computation = bool(head.group(1)), head.group(2)
            elif stripped in ("", "}") or stripped.startswith("HloModule"):
                continue
            elif (match := _LINE.fullmatch(stripped)) is None:
                raise self.refused(f"the line {stripped[:60]!r}")
            elif entry:
                self.instruction(_Instruction(match))
            elif match.group(1):
                self.roots[computation] = match.group(4)
        if not self.outputs:
            raise GraphError(f"{self.name} has no ROOT in an ENTRY; the module is truncated")
        return Graph(tuple(self.nodes), self.outputs, self.name)

    def refused(self, what: str) -> GraphError:
        return GraphError(f"{self.name}:{self.line} has {shown(what)}, which is not known of HLO")

    def instruction(self, each: _Instruction) -> None:
        if each.operator == "tuple":
            self.outputs = tuple(each.operands)
            return
        handler = _HANDLERS.get(each.operator)
        if handler is None:
            raise self.refused(f"the operator {each.operator}")
        if each.operator not in ("parameter", "constant", "iota"):
            for operand in each.operands:
                if operand not in self.shapes:
                    raise self.refused(f"the operand {operand} that no earlier line defines")
        handler(self, each)
        self.shapes[each.name] = each.shape
        if each.root:
            self.outputs = (each.name,)

    def add(
        self,
        each: _Instruction,
        operator: str,
        *args: Argument,
        name: str = "",
        shape: Sequence[int] | None = None,
        **kwargs: Argument,
    ) -> Ref:
        """A node, which is the instruction's result unless it has a name of its own."""
        full = f"{each.name}.{name}" if name else each.name
        size = each.shape if shape is None else tuple(shape)
        kind = (
            operator if operator in (INPUT, CONSTANT) or "c10d" in operator else f"aten.{operator}"
        )
        dtype = each.dtype
        self.nodes.append(Node(full, kind, args, kwargs, dtype, size, line=self.line))
        return Ref(full)

    def refs(self, each: _Instruction) -> list[Ref]:
        return [Ref(name) for name in each.operands]


def _parameter(reader: _Reader, each: _Instruction) -> None:
    reader.add(each, INPUT)


def _constant(reader: _Reader, each: _Instruction) -> None:
    text = each.text.strip()
    if text == "{...}":
        reader.add(each, CONSTANT, each.name)
        return
    try:
        value = {"true": 1.0, "false": 0.0}.get(text)
        value = float(text) if value is None else value
    except ValueError:
        raise reader.refused(f"the constant {text[:40]!r}") from None
    reader.values[each.name] = value
    whole = each.dtype in ("b8", "i32", "i64", "i8", "u8")
    dtype = Word(f"torch.{_TORCH[each.dtype or 'f32']}")
    reader.add(each, "full.default", each.shape, int(value) if whole else value, dtype=dtype)


def _elementwise(reader: _Reader, each: _Instruction) -> None:
    reader.add(each, _ELEMENTS[each.operator], *reader.refs(each))


def _compare(reader: _Reader, each: _Instruction) -> None:
    direction = each.attributes.get("direction", "").lower()
    if direction not in ("eq", "ne", "lt", "le", "gt", "ge"):
        raise reader.refused(f"the direction {direction}")
    reader.add(each, f"{direction}.Tensor", *reader.refs(each))


def _convert(reader: _Reader, each: _Instruction) -> None:
    dtype = Word(f"torch.{_TORCH[each.dtype or 'f32']}")
    reader.add(each, "_to_copy.default", *reader.refs(each), dtype=dtype)


def _reshape(reader: _Reader, each: _Instruction) -> None:
    (x,) = reader.refs(each)
    reader.add(each, "reshape.default", x, each.shape)


def _broadcast(reader: _Reader, each: _Instruction) -> None:
    (x,) = reader.refs(each)
    dims, own = each.numbers("dimensions"), reader.shapes[x.name]
    if len(dims) != len(own) or any(dim >= len(each.shape) for dim in dims):
        raise reader.refused("a broadcast whose dimensions do not fit")
    shape = [1] * len(each.shape)
    for dim, size in zip(dims, own, strict=True):
        shape[dim] = size
    x = reader.add(each, "reshape.default", x, tuple(shape), name="reshape", shape=shape)
    reader.add(each, "expand.default", x, each.shape)


def _iota(reader: _Reader, each: _Instruction) -> None:
    (dim,) = _numbers(each.attributes.get("iota_dimension", "")) or (0,)
    if dim >= len(each.shape):
        raise reader.refused("an iota whose dimension does not fit")
    size, dtype = each.shape[dim], Word(f"torch.{_TORCH[each.dtype or 'i32']}")
    x = reader.add(each, "arange.default", size, name="arange", shape=(size,), dtype=dtype)
    shape = [size if number == dim else 1 for number in range(len(each.shape))]
    x = reader.add(each, "reshape.default", x, tuple(shape), name="reshape", shape=shape)
    reader.add(each, "expand.default", x, each.shape)


def _transpose(reader: _Reader, each: _Instruction) -> None:
    reader.add(each, "permute.default", *reader.refs(each), each.numbers("dimensions"))


def _slice(reader: _Reader, each: _Instruction) -> None:
    (x,) = reader.refs(each)
    own = list(reader.shapes[x.name])
    ranges = _RANGE.findall(each.attributes.get("slice", ""))
    if len(ranges) != len(own):
        raise reader.refused("a slice whose ranges do not fit")
    for dim, (start, end, step) in enumerate(ranges):
        if (int(start), int(end)) != (0, own[dim]) or step:
            size = -(-(int(end) - int(start)) // int(step or 1))
            own[dim] = size
            args = (x, dim, int(start), int(end), int(step or 1))
            x = reader.add(each, "slice.Tensor", *args, name=f"dim{dim}", shape=own)
    reader.add(each, "alias.default", x)


def _concatenate(reader: _Reader, each: _Instruction) -> None:
    reader.add(each, "cat.default", tuple(reader.refs(each)), each.numbers("dimensions")[0])


def _dot(reader: _Reader, each: _Instruction) -> None:
    """Both operands as [batch, rows, inner] and [batch, inner, columns], whose product is cut."""
    sides = []
    for ref, side, last in zip(reader.refs(each), ("lhs", "rhs"), (True, False), strict=True):
        own = reader.shapes[ref.name]
        batch = each.numbers(f"{side}_batch_dims")
        inner = each.numbers(f"{side}_contracting_dims")
        free = tuple(dim for dim in range(len(own)) if dim not in (*batch, *inner))
        order = (*batch, *free, *inner) if last else (*batch, *inner, *free)
        turned = [own[dim] for dim in order]
        x = reader.add(each, "permute.default", ref, order, name=f"{side}.order", shape=turned)
        groups = (batch, free, inner) if last else (batch, inner, free)
        shape = [math.prod(own[dim] for dim in group) for group in groups]
        sides.append(reader.add(each, "reshape.default", x, tuple(shape), name=side, shape=shape))
    left, right = (next(node.shape for node in reader.nodes if node.name == x.name) for x in sides)
    assert left is not None
    assert right is not None
    shape = [left[0], left[1], right[2]]
    x = reader.add(each, "bmm.default", *sides, name="product", shape=shape)
    reader.add(each, "reshape.default", x, each.shape)


def _reduce(reader: _Reader, each: _Instruction) -> None:
    root = reader.roots.get(each.attributes.get("to_apply", "").lstrip("%"), "")
    operator, neutral = _REDUCTIONS.get(root, ("", 0.0))
    x, start = reader.refs(each)
    if not operator or reader.values.get(start.name) != neutral:
        raise reader.refused(f"a reduction by {root or 'an unknown computation'} from this value")
    reader.add(each, operator, x, each.numbers("dimensions"))


def _gather(reader: _Reader, each: _Instruction) -> None:
    """Rows of dimension 0, selected by a vector of indices."""
    x, index = reader.refs(each)
    own, rows = reader.shapes[x.name], reader.shapes[index.name]
    simple = (
        each.numbers("collapsed_slice_dims") == each.numbers("start_index_map") == (0,)
        and each.numbers("slice_sizes") == (1, *own[1:])
        and each.shape == (*rows[:1], *own[1:])
        and len(rows) == 1
    )
    if not simple:
        raise reader.refused("a gather of another form than rows by a vector of indices")
    reader.add(each, "index_select.default", x, 0, index)


def _all_reduce(reader: _Reader, each: _Instruction) -> None:
    root = reader.roots.get(each.attributes.get("to_apply", "").lstrip("%"), "")
    groups = each.attributes.get("replica_groups", "")
    if root not in _COLLECTIVES or not groups:
        raise reader.refused("an all-reduce of an unknown computation or group")
    (x,) = reader.refs(each)
    reader.add(each, "_c10d_functional.all_reduce.default", x, _COLLECTIVES[root], groups)


def _custom_call(reader: _Reader, each: _Instruction) -> None:
    target = each.attributes.get("custom_call_target", "").strip('"')
    if target == "AwsNeuronTransferWithStaticRing":
        reader.add(each, "alias.default", *reader.refs(each))
    elif target == "AwsNeuronRmsNorm":
        _rms_norm(reader, each)
    else:
        raise reader.refused(f"the custom call {target}")


def _rms_norm(reader: _Reader, each: _Instruction) -> None:
    x, weight, epsilon = reader.refs(each)
    (dim,) = _numbers(each.attributes.get("backend_config", "").strip('"')) or (0,)
    kept = [1 if number == dim else size for number, size in enumerate(each.shape)]
    column = [size if number == dim else 1 for number, size in enumerate(each.shape)]
    square = reader.add(each, "mul.Tensor", x, x, name="square")
    mean = reader.add(each, "mean.dim", square, (dim,), True, name="mean", shape=kept)
    total = reader.add(each, "add.Tensor", mean, epsilon, name="total", shape=kept)
    scale = reader.add(each, "rsqrt.default", total, name="scale", shape=kept)
    scaled = reader.add(each, "mul.Tensor", x, scale, name="scaled")
    args = (weight, tuple(column))
    weight = reader.add(each, "reshape.default", *args, name="weight", shape=column)
    reader.add(each, "mul.Tensor", scaled, weight)


_HANDLERS: dict[str, Handler] = {
    **dict.fromkeys(_ELEMENTS, _elementwise),
    "parameter": _parameter, "constant": _constant, "compare": _compare, "convert": _convert,
    "reshape": _reshape, "bitcast": _reshape, "broadcast": _broadcast, "iota": _iota,
    "transpose": _transpose, "slice": _slice, "concatenate": _concatenate, "dot": _dot,
    "reduce": _reduce, "gather": _gather, "all-reduce": _all_reduce, "custom-call": _custom_call,
}  # fmt: skip
