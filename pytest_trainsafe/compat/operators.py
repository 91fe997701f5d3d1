"""Operators, their schemas, the leaves of their arguments, and torch's functions in C.

Needs the attribute `_schema` of torch._ops.OpOverload; its `_handle`, whose `redispatch_boxed`
saves a call, is not required.  Without a schema, what an operator writes or returns is not known.

Needs `tree_leaves`, `tree_map`, `tree_flatten`, `tree_unflatten` and `tree_flatten_with_path` of
torch.utils._pytree.  Without them, a tensor inside a list, tuple or dict is not found.

Needs `_VariableFunctions` of torch._C, and torch._VF, from which torch.nn.functional takes
functions in C.  Without the first, a function of torch that the program replaces is not recognised
any more; without the second, functions of torch.nn.functional are not replaced.

Needs `_dispatch_has_kernel_for_dispatch_key` of torch._C.  Without it, no operator is known to be
defined by others.

torch 2.10 to 2.14 have all of these names.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from pytest_trainsafe.compat.private import Capability
from pytest_trainsafe.core.rank.state import replacing

SCHEMAS = Capability("what an operator writes is not known")
TREES = Capability("tensors in lists, tuples and dicts are not found")
IN_C = Capability("functions of torch that the program replaces are not recognised")
COMPOSITES = Capability("operators that torch defines by others are not told from others")
FUNCTIONAL = Capability("functions in C that torch.nn.functional calls are not replaced")


class _NoSchema:
    """The schema of an operator of which nothing is known."""

    name, is_mutable = "", False
    arguments: tuple[Any, ...] = ()
    returns: tuple[Any, ...] = ()


if TYPE_CHECKING:
    from torch._ops import OpOverload as OpOverload
else:
    OpOverload = SCHEMAS.of("torch._ops", "OpOverload") or _NoSchema

#: The schema of an operator: its name with the namespace, its arguments, and its results.
schema_of: Callable[[Any], Any] = (
    operator.attrgetter("_schema") if SCHEMAS.available else lambda operator: _NoSchema
)

_has_kernel = COMPOSITES.of("torch._C", "_dispatch_has_kernel_for_dispatch_key")


def is_composite(operator: Any) -> bool:
    """Whether torch defines an operator by other operators; False if that is not known."""
    if _has_kernel is None:
        return False
    return bool(_has_kernel(operator.name(), "CompositeImplicitAutograd"))


_PYTREE = "torch.utils._pytree"

#: The values in a structure of lists, tuples, dicts and other registered containers.
tree_leaves: Callable[[Any], list[Any]] = TREES.of(_PYTREE, "tree_leaves") or (lambda tree: [tree])

#: A structure with each value replaced by what a function returns for it.
tree_map: Callable[[Callable[[Any], Any], Any], Any] = TREES.of(_PYTREE, "tree_map") or (
    lambda function, tree: function(tree)
)

#: The values in a structure and its form, and the structure of a form with these values.
tree_flatten: Callable[[Any], tuple[list[Any], Any]] = TREES.of(_PYTREE, "tree_flatten") or (
    lambda tree: ([tree], None)
)
tree_unflatten: Callable[[list[Any], Any], Any] = TREES.of(_PYTREE, "tree_unflatten") or (
    lambda leaves, form: leaves[0]
)

#: The values in a structure with their paths, and its form.
tree_flatten_with_path: Callable[[Any], tuple[list[tuple[Any, Any]], Any]] = TREES.of(
    _PYTREE, "tree_flatten_with_path"
) or (lambda tree: ([((), tree)], None))

#: torch's functions by name, which no replacement by the program changes.
functions_in_c: Any = IN_C.of("torch._C", "_VariableFunctions") or torch

#: The class with the methods and properties of tensors that are written in C.
TensorBase: Any = torch.Tensor.__base__

_functional: Any = FUNCTIONAL.of("torch", "_VF")


def redispatch_of(func: Any) -> Callable[..., Any]:
    """The function that calls an operator's kernels for given dispatch keys.

    It is the one that `OpOverload.redispatch` calls, if the release has that.
    """
    handle: Any = getattr(func, "_handle", None)
    found: Callable[..., Any] = getattr(handle, "redispatch_boxed", None) or func.redispatch
    return found


@contextmanager
def replaced_in_functional(
    name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> Iterator[None]:
    """Replaces a function in C that torch.nn.functional calls by `make(original)`."""
    if _functional is None:
        yield
        return
    functions = vars(_functional)
    own = functions.get(name)
    replacing(_functional, name)
    functions[name] = make(getattr(_functional, name))
    try:
        yield
    finally:
        if own is not None:
            functions[name] = own
        else:
            functions.pop(name, None)


def only_views(func: Any) -> bool:
    """Whether an operator writes nothing, and all that it returns are views of its first argument.

    False if that is not known.
    """
    schema = schema_of(func)
    viewed = [each for each in schema.arguments if each.alias_info is not None]
    return (
        bool(schema.returns)
        and viewed == list(schema.arguments)[:1]
        and all(each.alias_info is not None for each in schema.returns)
        and not any(each.alias_info.is_write for each in viewed)
    )


#: Operators that only ask for a tensor's shape or dtype.
_SHAPES = (
    *("empty", "zeros", "ones", "full", "rand", "randn", "new_", "sym_", "is_", "size", "stride"),
    *("dim", "numel", "storage_offset", "prim", "resize_", "set_"),
)


def used_tensors(
    func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Iterator[tuple[torch.Tensor, bool]]:
    """The tensors whose values an operator reads or writes, and whether it writes them."""
    kinds = _kinds_of(func)
    if kinds is None:
        return
    names = [argument.name for argument in schema_of(func).arguments]
    values = [*args, *(kwargs.get(name) for name in names[len(args) :])]
    for writes, value in zip(kinds, values, strict=False):
        if writes is None:
            continue
        for tensor in value if isinstance(value, list | tuple) else (value,):
            if isinstance(tensor, torch.Tensor):
                yield tensor, writes


@functools.cache
def _kinds_of(func: Any) -> list[bool | None] | None:
    """For each argument whether the operator writes it, None if it only views it.

    None for an operator that uses no values.
    """
    schema = schema_of(func)
    if schema.name.rpartition("::")[2].startswith(_SHAPES):
        return None
    return [
        False if argument.alias_info is None else (True if argument.alias_info.is_write else None)
        for argument in schema.arguments
    ]
