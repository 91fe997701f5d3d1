"""Computes one node of a graph on exact numbers, with bounded memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from typing import Any

import torch

from pytest_trainsafe.arithmetic import ExactError, ExactMode
from pytest_trainsafe.arithmetic.variants import find
from pytest_trainsafe.compat.operators import OpOverload, is_composite, tree_leaves, tree_map
from pytest_trainsafe.core.untrusted import shown
from pytest_trainsafe.judges.refine.errors import CannotSayError, GraphError
from pytest_trainsafe.judges.refine.graphs.graph import (
    CONDITION,
    GETITEM,
    SYMBOL,
    SYMBOLIC,
    Argument,
    Graph,
    Node,
    Ref,
    Word,
)
from pytest_trainsafe.judges.refine.graphs.symbols import evaluate

Values = Mapping[str, Any]

#: The most elements of one tensor; a larger graph must be shrunk.
MAX_ELEMENTS = 1 << 23

#: Operators on integers and masks, which torch computes.
_WHOLE = frozenset(
    f"aten.{name}"
    for name in (
        "bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not", "logical_and", "logical_or",
        "logical_xor", "remainder", "fmod", "floor_divide", "one_hot", "bincount", "searchsorted",
        "bucketize", "repeat_interleave", "isin", "tril_indices", "triu_indices", "sym_size",
        "sym_numel", "lift_fresh_copy", "_assert_async", "_assert_tensor_metadata",
    )
)  # fmt: skip

#: Operators that torch defines; those of FSDP copy into tensors that they are given.
FSDP = "fsdp."
_SPACES = ("aten.", FSDP)
#: How many elements operators give for which the values of a tensor say it.
_COUNTED: Mapping[str, Callable[[torch.Tensor], int]] = {
    "aten.repeat_interleave": lambda counts: int(counts.sum()),
    "aten.bincount": lambda values: int(values.max()) + 1,
}
_FUNCTIONALIZED = ("higher_order.auto_functionalized", "higher_order.auto_functionalized_v2")
#: Keywords that say where a tensor lies, which no number depends on.
_PLACES = ("device", "layout", "pin_memory")


def compute(graph: Graph, node: Node, values: Values, mode: ExactMode) -> Any:
    """What a node returns, given the results of earlier ones.

    Raises CannotSayError for an operator without semantics, and GraphError if the node's arguments
    do not fit, or if its shape is not the one that the graph states.
    """
    if node.operator == GETITEM:
        return _item(graph, node, values)
    if node.operator == CONDITION:
        return _require(graph, node, values)
    if node.dtype == SYMBOLIC:
        return _size(graph, node, values)
    _bounded(graph, node)
    run, active = _runner(graph, node, mode)
    args = tuple(argument_of(each, values) for each in node.args)
    kwargs = {
        key: argument_of(each, values) for key, each in node.kwargs.items() if key not in _PLACES
    }
    try:
        _counted(graph, node, args)
        if node.shape is None and node.name not in graph.items:
            _meta_bounded(graph, node, args, kwargs)
        with active:
            result = run(*args, **kwargs)
    except ExactError as error:
        raise CannotSayError(
            f"{graph.at(node)}: nothing can be said behind {node}: {error}",
            getattr(error, "operator", node.short),
        ) from None
    except (RuntimeError, TypeError, IndexError, ValueError, AttributeError) as error:
        raise GraphError(
            f"{graph.at(node)}: {node} cannot be computed: {shown(str(error).splitlines()[0])}"
        ) from None
    _check_shape(graph, node, result)
    return result


def _require(graph: Graph, node: Node, values: Values) -> None:
    """Raises CannotSayError if a condition has another outcome than in the capture."""
    (name,) = node.inputs
    if bool(values[name]) != node.args[1]:
        raise CannotSayError(
            f"{graph.at(node)}: the capture takes the condition {graph.by_name[name]} to be "
            f"{node.args[1]}, which it is not for the inputs that were drawn; capture the other "
            "case, or take constants that decide it"
        )


def _size(graph: Graph, node: Node, values: Values) -> int:
    """A size that the program reads from a tensor, or computes from such sizes."""
    if node.operator == SYMBOL and isinstance(node.args[0], str):
        sizes = {name: each for name in node.inputs if isinstance(each := values[name], int)}
        return evaluate(node.args[0], sizes)
    found = values.get(node.inputs[0]) if node.inputs else None
    if isinstance(found, torch.Tensor):
        if node.short == "aten._local_scalar_dense" and not found.is_floating_point():
            return int(found)
        dim = node.args[1] if len(node.args) > 1 else 0
        if (
            node.short == "aten.sym_size"
            and isinstance(dim, int)
            and -found.ndim <= dim < found.ndim
        ):
            return found.shape[dim]
        if node.short == "aten.sym_numel":
            return found.numel()
    raise CannotSayError(f"{graph.at(node)}: the size {node} has no semantics", node.short)


def _item(graph: Graph, node: Node, values: Values) -> Any:
    (whole, index) = node.args
    assert isinstance(whole, Ref)
    found = values[whole.name]
    if not isinstance(found, tuple | list) or not isinstance(index, int) or index >= len(found):
        raise GraphError(f"{graph.at(node)}: {shown(whole.name)} has no item {index}")
    _check_shape(graph, node, found[index])
    return found[index]


def _runner(
    graph: Graph, node: Node, mode: ExactMode
) -> tuple[Callable[..., Any], AbstractContextManager[Any]]:
    """The operator of torch with its mode, or the rule of a kernel that torch does not have.

    Rules compute with torch's operators on the bits of numbers, so no mode is active for them.
    """
    if node.operator in _FUNCTIONALIZED:
        return _functionalized(graph, node, mode), nullcontext()
    semantics = None if "c10d" in node.short else find(mode.semantics, node.short)
    if semantics is not None and not node.short.startswith(_SPACES):
        rule = semantics.rule
        if rule is not None:
            mode.met[node.short] += 1
            return (
                lambda *args, **kwargs: _noted(rule(mode.numbers, *args, **kwargs), mode)
            ), nullcontext()
    operator = torch_operator(node.operator) if node.operator.startswith(_SPACES) else None
    if operator is None or not (semantics or node.short in _WHOLE or _composite(operator)):
        raise CannotSayError(
            f"{graph.at(node)}: {node} has no semantics, so nothing can be said behind it; state "
            f'them with @semantics_of("{shown(node.short)}", examples=...) from '
            "pytest_trainsafe.arithmetic",
            node.short,
        )
    overload = getattr(operator, "default", None) if node.operator == node.short else operator
    if isinstance(overload, OpOverload) and (semantics or node.short in _WHOLE):
        # Straight to the semantics: the dispatcher would cost more than most operators.
        return (lambda *args, **kwargs: mode.compute(overload, args, kwargs)), nullcontext()
    return operator, mode


def torch_operator(name: str) -> Callable[..., Any] | None:
    """The operator of torch.ops with this name, or None."""
    found: Any = torch.ops
    if name.startswith(FSDP):
        import_module("torch.distributed.fsdp")  # It has the operators.
    for part in name.split("."):
        if part.startswith("__"):
            return None
        found = getattr(found, part, None)
        if found is None:
            return None
    operator: Callable[..., Any] = found
    return operator


def _composite(operator: Any) -> bool:
    """Whether torch defines an operator by others, each of which is looked up then."""
    if isinstance(operator, OpOverload):
        return is_composite(operator)
    return all(is_composite(getattr(operator, each)) for each in operator.overloads())


def _functionalized(graph: Graph, node: Node, mode: ExactMode) -> Callable[..., Any]:
    """A kernel that writes into its arguments, made functional by torch.compile."""
    word = node.args[0] if node.args else None
    name = word.text.removeprefix("torch.ops.") if isinstance(word, Word) else ""
    name = ".".join(name.split(".")[:2])
    semantics = mode.semantics.get(name)
    if semantics is None or semantics.rule is None:
        raise CannotSayError(
            f"{graph.at(node)}: {node} calls {shown(name)}, which has no semantics; state what "
            f'it writes with @semantics_of("{shown(name)}", examples=...) from '
            "pytest_trainsafe.arithmetic",
            name,
        )
    rule = semantics.rule
    mode.met[name] += 1
    return lambda _, **kwargs: (None, *_noted(rule(mode.numbers, **kwargs), mode))


def _noted(result: Any, mode: ExactMode) -> Any:
    for each in tree_leaves(result):
        if isinstance(each, torch.Tensor) and each.is_floating_point():
            mode.note(each)
    return result


def argument_of(argument: Argument, values: Values) -> Any:
    if isinstance(argument, Ref):
        return values[argument.name]
    if isinstance(argument, tuple):
        return [argument_of(each, values) for each in argument]
    if isinstance(argument, Word):
        name = argument.text.removeprefix("torch.")
        return argument if "." in name or name == "device" else getattr(torch, name, argument)
    return argument


def _bounded(graph: Graph, node: Node) -> None:
    for shape in graph.items.get(node.name, ()) if node.shape is None else (node.shape,):
        if math.prod(shape) > MAX_ELEMENTS:
            raise CannotSayError(
                f"{graph.at(node)}: {node} has the shape {list(shape)}, which is too large to be "
                f"evaluated; the limit is {MAX_ELEMENTS} elements"
            )


def _counted(graph: Graph, node: Node, args: Sequence[Any]) -> None:
    """Refuses a node whose result would be too large because of its argument's values."""
    count = _COUNTED.get(node.short)
    tensors = [each for each in args[:2] if isinstance(each, torch.Tensor) and each.numel()]
    if count is None or not tensors or tensors[-1].is_floating_point():
        return
    elements = count(tensors[-1].double())
    if elements > MAX_ELEMENTS:
        raise CannotSayError(
            f"{graph.at(node)}: {node} would have {elements} elements, which is too large; the "
            f"limit is {MAX_ELEMENTS}"
        )


def _meta_bounded(graph: Graph, node: Node, args: Any, kwargs: dict[str, Any]) -> None:
    """Refuses a node of unstated shape whose result would be too large, before it is computed."""
    if not node.operator.startswith("aten."):
        return
    operator = torch_operator(node.operator)
    to_meta = tree_map(lambda x: x.to("meta") if isinstance(x, torch.Tensor) else x, (args, kwargs))
    try:
        assert operator is not None
        if not any(isinstance(each, torch.Tensor) for each in tree_leaves(to_meta)):
            to_meta[1]["device"] = "meta"
        result = operator(*to_meta[0], **to_meta[1])
    except (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError):
        return  # The shape depends on values, or the call itself will say what fails.
    for each in tree_leaves(result):
        if isinstance(each, torch.Tensor) and each.numel() > MAX_ELEMENTS:
            raise CannotSayError(
                f"{graph.at(node)}: {node} would have the shape {list(each.shape)}, which is too "
                f"large; the limit is {MAX_ELEMENTS} elements"
            )


def _check_shape(graph: Graph, node: Node, result: Any) -> None:
    if node.shape is None or not isinstance(result, torch.Tensor):
        return
    if tuple(result.shape) != node.shape:
        raise GraphError(
            f"{graph.at(node)}: {node} is stated to have the shape {list(node.shape)}, but its "
            f"arguments give {list(result.shape)}"
        )
