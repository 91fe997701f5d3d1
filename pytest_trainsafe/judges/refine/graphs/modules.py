"""Graphs of torch.fx graph modules, of exported programs, and of a function on one rank."""

from __future__ import annotations

import operator
import re
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from pytest_trainsafe.compat.dispatch_modes import without_modes
from pytest_trainsafe.compat.distributed.process_groups import group_named
from pytest_trainsafe.compat.distributed.uneven_exchange import uneven_exchanges
from pytest_trainsafe.compat.fake_group import fake_group
from pytest_trainsafe.compat.operators import OpOverload, schema_of
from pytest_trainsafe.core.usage import shown as described
from pytest_trainsafe.errors import ArgumentError
from pytest_trainsafe.judges.refine.errors import GraphError
from pytest_trainsafe.judges.refine.graphs.calls import SPACE, Calls, named
from pytest_trainsafe.judges.refine.graphs.conditions import STATED, Conditions
from pytest_trainsafe.judges.refine.graphs.fx_values import Stated
from pytest_trainsafe.judges.refine.graphs.graph import (
    CONDITION,
    CONSTANT,
    GETITEM,
    INPUT,
    SYMBOL,
    SYMBOLIC,
    Argument,
    Graph,
    Node,
    Ref,
    Word,
    leaves,
)
from pytest_trainsafe.judges.refine.graphs.program_lines import program_lines
from pytest_trainsafe.judges.refine.graphs.symbols import STATEMENTS
from pytest_trainsafe.judges.refine.graphs.unused import without_unused
from pytest_trainsafe.judges.refine.mesh import RANKS

#: How shapes in graphs name the dtypes of torch.
DTYPES = {
    torch.bool: "b8", torch.uint8: "u8", torch.int8: "i8", torch.int16: "i16",
    torch.int32: "i32", torch.int64: "i64", torch.float16: "f16", torch.bfloat16: "bf16",
    torch.float32: "f32", torch.float64: "f64",
}  # fmt: skip
#: The most elements of a constant whose values are part of the graph.
_CONSTANT = 1 << 14
#: What torch raises where a program needs the value of a tensor.
_UNCAPTURED = ("DataDependentOutputException", "DynamicOutputShapeException",
               "GuardOnDataDependentSymNode")  # fmt: skip
#: How torch shows an integer that was read from a tensor, which a call may refuse.
_READ = re.compile(r"\[u\d+[,\]]")
#: Python's arithmetic of sizes in graphs.
_ARITHMETIC: Mapping[Any, str] = {
    operator.add: "+", operator.sub: "-", operator.mul: "*", operator.floordiv: "//",
    operator.mod: "%", operator.pow: "**", operator.eq: "==", operator.ne: "!=",
    operator.lt: "<", operator.le: "<=", operator.gt: ">", operator.ge: ">=",
}  # fmt: skip
_TORCH = Path(torch.__file__).parent
_LINE = re.compile(r'File "(.+?)", line (\d+)')


def graph_of_module(module: Any, name: str) -> Graph:
    """The graph of a torch.fx.GraphModule or of a torch.export.ExportedProgram.

    Small integer tensors and scalars that the module holds are constants with their values; its
    other tensors are inputs, called after their attribute.
    """
    module = getattr(module, "graph_module", module)
    return _Reader(module, name).read()


class _Reader:
    """Reads a graph module; calls of torch.distributed become collectives (`calls.py`)."""

    def __init__(self, module: torch.fx.GraphModule, name: str) -> None:
        self.module = module
        self.name = name
        self.nodes: dict[str, Node] = {}
        self.objects: dict[str, Any] = {}
        self.calls = Calls(self.objects, self.nodes)

    def read(self) -> Graph:
        outputs: tuple[str | None, ...] = ()
        for number, node in enumerate(self.module.graph.nodes, 1):
            if node.op == "output":
                found = (self._ref(each) for each in leaves(node.args[0]))
                outputs = tuple(each.name if isinstance(each, Ref) else None for each in found)
            elif not self._is_object(node) and not str(node.target).startswith("profiler."):
                self._add(_node(self.module, node, self.name, number))
        return Graph(tuple(self.nodes.values()), outputs, self.name)

    def _is_object(self, node: torch.fx.Node) -> bool:
        """Whether a node is a process group or a reduction's kind, which are no tensors."""
        if node.op != "get_attr":
            return False
        value = _attribute_of(self.module, node)
        if isinstance(value, torch.ScriptObject):
            self.objects[node.name] = value
        return node.name in self.objects

    def _add(self, node: Node) -> None:
        if node.operator.startswith(SPACE):
            self.nodes |= {each.name: each for each in self.calls.nodes(self._resolved(node))}
        elif node.operator == GETITEM and node.inputs[0] in self.calls.results:
            index = node.args[1]
            assert isinstance(index, int)
            self.calls.results[node.name] = self.calls.item(node.inputs[0], index)
        else:
            self.nodes[node.name] = self._resolved(node)

    def _resolved(self, node: Node) -> Node:
        """The node with what calls return in the place of the names of the calls' items."""
        if not any(name in self.calls.results for name in node.inputs):
            return node
        kwargs = {key: self._replaced(each) for key, each in node.kwargs.items()}
        return replace(node, args=tuple(map(self._replaced, node.args)), kwargs=kwargs)

    def _replaced(self, argument: Any) -> Any:
        if isinstance(argument, tuple):
            return tuple(map(self._replaced, argument))
        if isinstance(argument, Ref):
            return self.calls.results.get(argument.name, argument)
        return argument

    def _ref(self, result: Any) -> Any:
        return self._replaced(Ref(result.name)) if isinstance(result, torch.fx.Node) else None


#: The tensors that a program logs while it is captured, by their names; None outside of captures.
_logged: dict[str, torch.Tensor] | None = None


def log_tensor(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Names a tensor of the program in the graph of `capture`, and returns it.

    The name stands for the value that the tensor has now.  Outside of a capture, nothing happens.
    Raises ArgumentError if one step logs a name twice.
    """
    if _logged is not None:
        if name in _logged:
            raise ArgumentError(f"log_tensor was given the name {name!r} twice in one step")
        _logged[name] = tensor.detach().clone()
    return tensor


def untraced() -> AbstractContextManager[object]:
    """What a program does in this block is no part of a captured graph.

    So a DeviceMesh is made, whose tensors are real.
    """
    return without_modes()


@contextmanager
def _logging() -> Iterator[dict[str, torch.Tensor]]:
    """The tensors that the program logs in this block."""
    global _logged
    before, _logged = _logged, {}
    try:
        yield _logged
    finally:
        _logged = before


def capture(
    program: Callable[..., Any],
    arguments: Sequence[torch.Tensor] | Mapping[str, torch.Tensor],
    *,
    rank: int = 0,
    ranks: int = 1,
    name: str = "",
    conditions: Sequence[bool] = (),
) -> Graph:
    """The graph of what `program(*arguments)` executes as one rank of many, in this process.

    The program may train a whole step: forward, backward, reduction of gradients, clipping and the
    optimizer's update, in place.  It may call the collectives of torch.distributed, also to make
    process groups; nothing is sent.  A mapping is passed as a dict, and its keys name the graph's
    inputs; if the program returns a mapping, its keys name the graph's results, and `log_tensor`
    names tensors in between.
    `conditions` has the outcomes of conditions on tensors, such as `if norm > clip`, in the order
    in which the program asks for them; the graph states them, and a proof is for inputs that have
    these outcomes.
    No process group may be initialized.  Raises GraphError, with the program's line, for what no
    graph holds, such as a condition on the value of a tensor.
    """
    from torch.fx.experimental.proxy_tensor import make_fx

    if torch.distributed.is_initialized():
        raise ArgumentError("capture makes a process group of its own; destroy the present one")
    if not 0 <= rank < ranks:
        raise ArgumentError(f"capture was given rank={rank} of ranks={ranks}")
    keys: list[str] = []
    names = list(arguments) if isinstance(arguments, Mapping) else None
    values = list(arguments.values() if isinstance(arguments, Mapping) else arguments)
    for number, each in enumerate(values):  # One tensor for two arguments would be one input.
        if any(each is other for other in values[:number]):
            values[number] = each.detach().clone().requires_grad_(each.requires_grad)

    logged: list[str] = []
    asked = Conditions(conditions)
    answering = asked if conditions else nullcontext()  # It costs time with each call of torch.

    def run(*given: torch.Tensor) -> Any:
        with _logging() as found, uneven_exchanges(), answering, program_lines():
            result = (
                program(*given) if names is None else program(dict(zip(names, given, strict=True)))
            )
        if isinstance(result, Mapping):
            keys[:] = map(str, result)
            result = list(result.values())
        logged[:] = found
        return result, *found.values()

    name = name or (f"rank {rank}" if ranks > 1 else "sequential")
    with fake_group(rank, ranks):
        try:
            module = make_fx(run, tracing_mode="fake", _allow_non_fake_inputs=True)(*values)
        except (RuntimeError, TypeError) as error:
            if type(error).__name__ not in _UNCAPTURED and not _READ.search(str(error)):
                raise
            raise _uncaptured(name, error) from error
        asked.check()
        graph = _with_groups(_measured(graph_of_module(module, name)))
    return _with_names(_with_logged(without_unused(graph), logged), names, keys)


def _with_logged(graph: Graph, logged: Sequence[str]) -> Graph:
    """The graph with the names that were logged for its last outputs, which are no results."""
    if not logged:
        return graph
    count = len(graph.outputs) - len(logged)
    new = {old: name for name, old in zip(logged, graph.outputs[count:], strict=True) if old}
    nodes = tuple(_renamed(node, new) for node in graph.nodes)
    return Graph(nodes, graph.outputs[:count], graph.name)


def _uncaptured(name: str, error: Exception) -> GraphError:
    """The line of the program, the last outside of torch, at which the capture ended."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [each for each in frames if _TORCH not in Path(each.filename).parents]
    at = f"{own[-1].filename}:{own[-1].lineno}" if own else "an unknown line"
    return GraphError(
        f"{name} cannot be captured: at {at}, `{own[-1].line if own else ''}` needs the value of "
        f"a tensor, which a graph does not have ({str(error).splitlines()[0]}); take the condition "
        "out of the step, or capture each case alone, with `conditions`"
    )


def _measured(graph: Graph) -> Graph:
    """The graph whose sizes are computed where the program reads them from tensors."""
    nodes = (replace(each, sizes=None) for each in graph.nodes if each.short not in STATEMENTS)
    return replace(graph, nodes=tuple(nodes))


def _with_groups(graph: Graph) -> Graph:
    """The graph with the names of process groups, which are torch's, replaced by their ranks."""
    return replace(graph, nodes=tuple(map(_with_group, graph.nodes)))


def _with_group(node: Node) -> Node:
    if not node.operator.startswith("_c10d_functional.") or not node.args:
        return node
    *args, group = node.args
    if not isinstance(group, str) or group.startswith(RANKS) or node.operator.count("wait_tensor"):
        return node
    ranks = torch.distributed.get_process_group_ranks(group_named(group))
    return replace(node, args=(*args, named(ranks)))


def _with_names(graph: Graph, names: Sequence[str] | None, keys: Sequence[str]) -> Graph:
    """The graph whose inputs, and whose results, have the names that a program gave them."""
    new = {node.name: name for node, name in zip(graph.inputs, names or (), strict=False)}
    copies = []
    outputs = graph.outputs
    if keys:
        outputs = tuple(
            None if output is None else key for key, output in zip(keys, graph.outputs, strict=True)
        )
        for key, output in zip(keys, graph.outputs, strict=True):
            if output is None:
                continue
            if output in new or graph.by_name[output].operator in (INPUT, CONSTANT):
                copies.append(Node(key, "aten.alias.default", (Ref(new.get(output, output)),)))
            else:
                new[output] = key
    kept = {node.name for node in graph.nodes} - set(new)
    given = [*new.values(), *(node.name for node in copies)]
    for name in given:
        if name in kept or given.count(name) > 1:
            raise ArgumentError(
                f"{graph.name} has several tensors that are called {name!r}; rename the argument "
                "or the result of this name"
            )
    nodes = [_renamed(node, new) for node in graph.nodes]
    return Graph((*nodes, *copies), outputs, graph.name)


def _node(module: torch.fx.GraphModule, node: torch.fx.Node, name: str, number: int) -> Node:
    dtype, shape, sizes = _described(node)
    source, path = _source(node), _module_path(node)

    def made(operator: str, args: tuple[Argument, ...], **kwargs: Argument) -> Node:
        return Node(node.name, operator, args, kwargs, dtype, shape, source, path, number, sizes)

    if node.op == "placeholder":
        return Node(node.name, INPUT, (), {}, dtype, shape, line=number, sizes=sizes)
    if node.op == "get_attr":
        return _attribute(module, node, number)
    if node.op == "call_function" and node.target is operator.getitem:
        return made(GETITEM, tuple(_argument(each) for each in node.args))
    if node.op == "call_function" and dtype == SYMBOLIC and node.target in _ARITHMETIC:
        sides = [str(each) for each in node.args]
        taken = (_argument(each) for each in node.args if isinstance(each, torch.fx.Node))
        return made(SYMBOL, (f" {_ARITHMETIC[node.target]} ".join(sides), *taken))
    if node.op == "call_function" and isinstance(node.target, OpOverload):
        schema = schema_of(node.target)
        target = f"{schema.name.replace('::', '.')}.{schema.overload_name or 'default'}"
        args = tuple(_argument(each) for each in node.args)
        if target == "aten._assert_async.msg" and args[1] in STATED.values():
            return made(CONDITION, (args[0], args[1] == STATED[True]))
        return made(target, args, **{key: _argument(each) for key, each in node.kwargs.items()})
    raise GraphError(
        f"{name}: {node.name} calls {described(node.target)}, which is no operator of torch.ops; "
        "trace the program with make_fx or torch.export"
    )


def _attribute(module: torch.fx.GraphModule, node: torch.fx.Node, number: int) -> Node:
    value = _attribute_of(module, node)
    if not isinstance(value, torch.Tensor):
        raise GraphError(f"{node.name} is {described(value)}, not a tensor")
    dtype, shape = DTYPES.get(value.dtype), tuple(value.shape)
    small = value.numel() <= _CONSTANT and (not value.is_floating_point() or value.ndim == 0)
    if not small or isinstance(value, torch.nn.Parameter):
        return Node(node.name, INPUT, (), {}, dtype, shape, line=number)
    with without_modes():
        values = _frozen(value.tolist())
    return Node(node.name, CONSTANT, (str(node.target), values), {}, dtype, shape, line=number)


def _attribute_of(module: torch.fx.GraphModule, node: torch.fx.Node) -> Any:
    value: Any = module
    for part in str(node.target).split("."):
        value = getattr(value, part)
    return value


def _renamed(node: Node, new: Mapping[str, str]) -> Node:
    def rename(argument: Argument) -> Argument:
        if isinstance(argument, tuple):
            return tuple(map(rename, argument))
        return Ref(new.get(argument.name, argument.name)) if type(argument) is Ref else argument

    return replace(
        node,
        name=new.get(node.name, node.name),
        args=tuple(map(rename, node.args)),
        kwargs={key: rename(each) for key, each in node.kwargs.items()},
    )


def _frozen(values: Any) -> Argument:
    return tuple(map(_frozen, values)) if isinstance(values, list) else values


def _described(node: torch.fx.Node) -> Stated:
    value = node.meta.get("val")
    if isinstance(value, torch.SymInt | torch.SymBool):
        return SYMBOLIC, None, (str(value),)
    if not isinstance(value, torch.Tensor):
        return None, None, None
    dtype = DTYPES.get(value.dtype)
    shape: list[Any] = list(value.shape)
    if not all(isinstance(size, int) for size in shape):
        sizes = tuple(size if isinstance(size, int) else str(size) for size in shape)
        return dtype, None, sizes
    return dtype, tuple(value.shape), None


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
