"""Whether a backward, or a transform of torch.func, surrounds the running code.

Needs `_get_sequence_nr` of torch.autograd, `_current_graph_task_id` and `_current_autograd_node` of
torch._C, and `_sequence_nr` of a node.  Without them, a forward that runs again inside a backward
counts as a new forward.

Needs `peek_interpreter_stack` and `is_functorch_wrapped_tensor` of torch._C._functorch, and
`temporarily_clear_interpreter_stack` of torch._functorch.pyfunctorch.  Without them, the tensors
inside a transform (vmap, grad, jvp...) are taken for plain ones, whose values cannot be read.

Needs `_input_metadata` of a node.  Without it, shapes inside the graph of a loss are not known.

Needs `_saved_dim` of the node of a softmax.  Without it, its dimension is not known.

Needs `_saved_self` and `_saved_other` of the node of a product.  Without them, products of a
constant in a loss are not looked at.

Needs `_saved_mat2` of the node of a product of matrices.  Without it, labels that number gathered
examples are not looked at.

Needs `_saved_result` of the node of an operator such as tanh.  Without it, noise does not reach a
gradient that is differentiated again.

Needs `_forward_cls` of a node that a function in Python makes.  Without it, reports name no such
functions.

Needs `variable` of the node that adds to a gradient.  Without it, the leaves behind a tensor are
not known.

Needs the attributes `_saved_...` of nodes.  Without one of them, that constant of a loss's graph is
not looked at.

torch 2.10 to 2.14 have all of these names.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from pytest_trainsafe.compat.private import Capability

NODES = Capability("forwards that a backward runs again are not told from others")
DIMENSIONS = Capability("the dimension of a softmax before a loss is not looked at")
SHAPES = Capability("shapes inside the graph of a loss are not looked at")
TRANSFORMS = Capability("tensors inside the transforms of torch.func are not told from others")

#: How many nodes of autograd's graph this thread has made so far; 0 if that is off.
nodes_made: Callable[[], int] = NODES.of("torch.autograd", "_get_sequence_nr") or (lambda: 0)

#: The number of the backward that this thread is running; -1 if there is none, or that is off.
running_backward: Callable[[], int] = NODES.of("torch._C", "_current_graph_task_id") or (lambda: -1)

_node = NODES.of("torch._C", "_current_autograd_node")

#: Whether a tensor stands for others inside a transform of torch.func.
is_transformed: Callable[[torch.Tensor], bool] = TRANSFORMS.of(
    "torch._C._functorch", "is_functorch_wrapped_tensor"
) or (lambda tensor: False)

_innermost = TRANSFORMS.of("torch._C._functorch", "peek_interpreter_stack")
_leave = TRANSFORMS.of("torch._functorch.pyfunctorch", "temporarily_clear_interpreter_stack")


def function_of(node: Any) -> type[torch.autograd.Function] | None:
    """The function in Python whose derivative a node computes; None for torch's own functions."""
    return getattr(node, "_forward_cls", None)


def leaf_of(node: Any) -> torch.Tensor | None:
    """The tensor to whose gradient a node adds; None for a node that computes a derivative."""
    return getattr(node, "variable", None)


def shape_made(node: Any, output: int) -> tuple[int, ...] | None:
    """The shape of a result of the operator that a node differentiates; None if it is not known."""
    made = getattr(node, "_input_metadata", None)
    if made is None:
        SHAPES.lacks(f"{type(node).__name__}._input_metadata")
        return None
    return tuple(made[output].shape) if output < len(made) else None


def softmax_dimension(node: Any) -> int | None:
    """The dimension of the softmax that a node differentiates; None if it is not known."""
    saved: int | None = getattr(node, "_saved_dim", None)
    if saved is None:
        DIMENSIONS.lacks(f"{type(node).__name__}._saved_dim")
        return None
    return _signed(saved)


def constant_factor(node: Any) -> torch.Tensor | None:
    """The tensor that a product of one tensor with a gradient is multiplied with; None if unknown.

    Of the two factors, a node keeps the one that the other's gradient needs.
    """
    for name in ("_saved_other", "_saved_self"):
        saved = getattr(node, name, None)
        if isinstance(saved, torch.Tensor) and not saved.requires_grad:
            return saved
    return None


def right_factor(node: Any) -> torch.Tensor | None:
    """The right factor of the product of matrices that a node differentiates; None if unknown."""
    factor: torch.Tensor | None = getattr(node, "_saved_mat2", None)
    return factor


def uses_own_result(node: Any) -> bool:
    """Whether a node computes its derivative from the operator's own result, as that of a tanh."""
    return hasattr(type(node), "_saved_result")


#: Numbers that nodes save and that follow from the data: sizes, places, seeds.
_OF_DATA = ("start", "end", "index", "length", "split_size")
_PARTS_OF_DATA = ("sym_", "size", "seed", "offset")


def numbers_saved(node: Any) -> Iterator[tuple[str, str]]:
    """The constants of the operator that a node differentiates, by name, but for those of data.

    They are numbers, flags, names and tuples of them, as the dimension of a sum.
    """
    for name in _constants_of(type(node).__mro__):
        value = getattr(node, name, None)
        every = value if isinstance(value, tuple | list) else (value,)
        if all(isinstance(each, bool | int | float | str) for each in every):
            yield name.removeprefix("_saved_"), ",".join(map(_text_of, every))


def number_saved(node: Any) -> float | None:
    """The number of the program by which an operator multiplies or divides; None if unknown.

    torch keeps a number of Python as a tensor of another dtype than that of the result.  A tensor
    that the program has computed may have any value, so it is no such number.
    """
    if type(node).__name__ not in ("MulBackward0", "DivBackward0"):
        return None
    saved = getattr(node, "_saved_other", None)
    if not isinstance(saved, torch.Tensor) or saved.dim() or saved.requires_grad:
        return None
    made = getattr(node, "_input_metadata", None)
    if not made or saved.dtype is made[0].dtype:
        return None
    return float(saved) if saved.dtype in (torch.float64, torch.int64) else None


def weight_saved(node: Any) -> torch.Tensor | None:
    """The tensor without a gradient by which an operator weights another; None if unknown."""
    if type(node).__name__ not in ("MulBackward0", "DivBackward0"):
        return None
    saved = constant_factor(node)
    plain = saved is not None and type(saved) is torch.Tensor and saved.is_floating_point()
    return saved if plain and saved.layout is torch.strided else None  # type: ignore[union-attr]


def indices_saved(node: Any, shape: tuple[int, ...] | None) -> Iterator[tuple[int, torch.Tensor]]:
    """The numbers of rows that a node keeps, each with how many rows there are.

    `shape` is that of the result, whose rows are numbered where the operator adds to them.
    """
    name = type(node).__name__.partition("Backward")[0]
    if name == "Index":
        sizes = getattr(node, "_saved_self_sym_sizes", ())
        for size, each in zip(sizes, getattr(node, "_saved_indices", ()), strict=False):
            if isinstance(each, torch.Tensor) and each.dtype is torch.int64:
                yield int(size), each
    elif name in ("IndexAdd", "ScatterAdd") and shape is not None:
        each, dim = getattr(node, "_saved_index", None), getattr(node, "_saved_dim", None)
        if isinstance(each, torch.Tensor) and isinstance(dim, int):
            yield shape[_signed(dim)], each


@functools.cache
def _constants_of(classes: tuple[type, ...]) -> list[str]:
    names = {name for each in classes for name in vars(each)}
    return sorted(
        name
        for name in names
        if name.startswith("_saved_")
        and f"_raw{name}" not in names  # a tensor
        and name.removeprefix("_saved_") not in _OF_DATA
        and not any(part in name for part in _PARTS_OF_DATA)
    )


def _text_of(value: bool | int | float | str) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(_signed(value))
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _signed(number: int) -> int:
    return number - 2**64 if number >= 2**63 else number  # torch gives it without a sign


def running_node() -> int | None:
    """The number of the node whose derivative this thread computes now; None if none or off.

    A node has as its number how many nodes its thread had made before it.
    """
    node = _node() if NODES.available else None
    return None if node is None else int(node._sequence_nr())


def inside_transform() -> bool:
    """Whether the running code is inside a transform of torch.func."""
    return _innermost is not None and _innermost() is not None


def outside_transforms() -> AbstractContextManager[object]:
    """Leaves all transforms of torch.func (grad, vmap...) in a context.

    Inside a transform, operators can also turn the program's plain tensors, such as parameters,
    into tensors without readable values.
    """
    if _leave is None or not inside_transform():
        return nullcontext()
    context: AbstractContextManager[object] = _leave()
    return context
