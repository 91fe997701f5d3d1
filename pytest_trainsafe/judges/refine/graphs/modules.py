"""Graphs of torch.fx graph modules, of exported programs, and of a function on one rank."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch

from pytest_trainsafe.compat.dispatch_modes import without_modes
from pytest_trainsafe.compat.fake_group import fake_group
from pytest_trainsafe.compat.operators import OpOverload, schema_of
from pytest_trainsafe.core.usage import shown as described
from pytest_trainsafe.errors import ArgumentError
from pytest_trainsafe.judges.refine.errors import GraphError
from pytest_trainsafe.judges.refine.graphs.graph import (
    CONSTANT,
    GETITEM,
    INPUT,
    Argument,
    Graph,
    Node,
    Ref,
    Word,
    leaves,
)

#: How shapes in graphs name the dtypes of torch.
DTYPES = {
    torch.bool: "b8", torch.uint8: "u8", torch.int8: "i8", torch.int16: "i16",
    torch.int32: "i32", torch.int64: "i64", torch.float16: "f16", torch.bfloat16: "bf16",
    torch.float32: "f32", torch.float64: "f64",
}  # fmt: skip
#: The most elements of a constant whose values are part of the graph.
_CONSTANT = 64
_LINE = re.compile(r'File "(.+?)", line (\d+)')


def graph_of_module(module: Any, name: str) -> Graph:
    """The graph of a torch.fx.GraphModule or of a torch.export.ExportedProgram.

    Small integer tensors and scalars that the module holds are constants with their values; its
    other tensors are inputs, called after their attribute.
    """
    module = getattr(module, "graph_module", module)
    nodes: list[Node] = []
    outputs: tuple[str | None, ...] = ()
    for number, node in enumerate(module.graph.nodes, 1):
        if node.op == "output":
            outputs = tuple(
                each.name if isinstance(each, torch.fx.Node) else None
                for each in leaves(node.args[0])
            )
        else:
            nodes.append(_node(module, node, name, number))
    return Graph(tuple(nodes), outputs, name)


def capture(
    program: Callable[..., Any],
    arguments: Sequence[torch.Tensor],
    *,
    rank: int = 0,
    ranks: int = 1,
    name: str = "",
) -> Graph:
    """The graph of what `program(*arguments)` executes as one rank of many, in this process.

    The program may call the functional collectives of torch.distributed, forward and backward;
    nothing is sent.  No process group may be initialized.
    """
    from torch.fx.experimental.proxy_tensor import make_fx

    if torch.distributed.is_initialized():
        raise ArgumentError("capture makes a process group of its own; destroy the present one")
    if not 0 <= rank < ranks:
        raise ArgumentError(f"capture was given rank={rank} of ranks={ranks}")
    with fake_group(rank, ranks):
        module = make_fx(program, tracing_mode="fake")(*arguments)
    return graph_of_module(module, name or f"rank {rank}")


def _node(module: torch.fx.GraphModule, node: torch.fx.Node, name: str, number: int) -> Node:
    dtype, shape = _described(node)
    source, path = _source(node), _module_path(node)
    if node.op == "placeholder":
        return Node(node.name, INPUT, (), {}, dtype, shape, line=number)
    if node.op == "get_attr":
        return _attribute(module, node, number)
    if node.op == "call_function" and node.target is operator.getitem:
        args = tuple(_argument(each) for each in node.args)
        return Node(node.name, GETITEM, args, {}, dtype, shape, source, path, number)
    if node.op == "call_function" and isinstance(node.target, OpOverload):
        schema = schema_of(node.target)
        target = f"{schema.name.replace('::', '.')}.{schema.overload_name or 'default'}"
        return Node(
            node.name,
            target,
            tuple(_argument(each) for each in node.args),
            {key: _argument(each) for key, each in node.kwargs.items()},
            dtype,
            shape,
            source,
            path,
            number,
        )
    raise GraphError(
        f"{name}: {node.name} calls {described(node.target)}, which is no operator of torch.ops; "
        "trace the program with make_fx or torch.export"
    )


def _attribute(module: torch.fx.GraphModule, node: torch.fx.Node, number: int) -> Node:
    value: Any = module
    for part in str(node.target).split("."):
        value = getattr(value, part)
    if not isinstance(value, torch.Tensor):
        raise GraphError(f"{node.name} is {described(value)}, not a tensor")
    dtype, shape = DTYPES.get(value.dtype), tuple(value.shape)
    small = value.numel() <= _CONSTANT and (not value.is_floating_point() or value.ndim == 0)
    if not small or isinstance(value, torch.nn.Parameter):
        return Node(node.name, INPUT, (), {}, dtype, shape, line=number)
    with without_modes():
        values = _frozen(value.tolist())
    return Node(node.name, CONSTANT, (str(node.target), values), {}, dtype, shape, line=number)


def _frozen(values: Any) -> Argument:
    return tuple(map(_frozen, values)) if isinstance(values, list) else values


def _described(node: torch.fx.Node) -> tuple[str | None, tuple[int, ...] | None]:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return None, None
    if not all(isinstance(size, int) for size in value.shape):
        return DTYPES.get(value.dtype), None
    return DTYPES.get(value.dtype), tuple(value.shape)


def _argument(value: Any) -> Argument:
    if isinstance(value, torch.fx.Node):
        return Ref(value.name)
    if isinstance(value, list | tuple):
        return tuple(map(_argument, value))
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, torch.device):
        return Word("device")
    if isinstance(value, torch.dtype | torch.layout | torch.memory_format):
        return Word(str(value))
    raise GraphError(f"an operator takes {described(value)}, which no graph holds")


def _source(node: torch.fx.Node) -> str:
    """The last line of the program that led to a node."""
    found = _LINE.findall(str(node.meta.get("stack_trace") or ""))
    return ":".join(found[-1]) if found else ""


def _module_path(node: torch.fx.Node) -> str:
    stack = node.meta.get("nn_module_stack") or {}
    return str(next(reversed(stack.values()), ("",))[0])
