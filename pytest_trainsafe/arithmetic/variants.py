"""Variants of an operator: in place, `out=` and foreach, which follow from the functional one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import torch

from pytest_trainsafe.arithmetic.numbers import Numbers
from pytest_trainsafe.arithmetic.packing import in_torch
from pytest_trainsafe.arithmetic.table import Semantics
from pytest_trainsafe.compat.operators import OpOverload, schema_of

#: How a result is stored, which changes no number.
_STORAGE = ("dtype", "layout", "device", "pin_memory", "non_blocking", "memory_format")

FOREACH = "_foreach_"
_FOREACH_NAMES = {"norm": "linalg_vector_norm"}
#: Their last argument is a keyword of the operator for one tensor.
_FOREACH_VALUES = frozenset({"addcmul", "addcdiv"})


@lru_cache(maxsize=4096)
def operator_name(func: OpOverload) -> str:
    """The name of an operator in the table, such as "aten.add_"."""
    return str(schema_of(func).name).replace("::", ".")


@lru_cache(maxsize=4096)
def _outputs(func: OpOverload) -> tuple[str, ...]:
    """The names of the arguments into which an operator writes its results."""
    return tuple(each.name for each in schema_of(func).arguments if each.is_out)


def find(table: Mapping[str, Semantics], name: str) -> Semantics | None:
    """The semantics of an operator, or of the functional one whose in-place variant it is."""
    found = table.get(name)
    if found is None and name.endswith("_"):
        found = table.get(name.removesuffix("_"))
    return found


def computed(
    semantics: Semantics,
    numbers: Numbers,
    func: OpOverload,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """What `func` returns by a rule; what it writes in place or into `out` is written."""
    assert semantics.rule is not None
    outputs = _outputs(func)
    given = {key: value for key, value in kwargs.items() if key not in outputs}
    if not semantics.factory:
        given = {key: value for key, value in given.items() if key not in _STORAGE}
    result = semantics.rule(numbers, *args, **given)
    if outputs:
        targets = [kwargs[name] for name in outputs]
        results = result if isinstance(result, tuple) else (result,)
        for target, each in zip(targets, results, strict=True):
            if target.shape != each.shape:
                target.resize_(each.shape)
            write(numbers, target, each)
        return targets[0] if len(targets) == 1 else tuple(targets)
    if semantics.name == operator_name(func):
        return _received(result, args)
    write(numbers, args[0], result)
    return args[0]


def _received(result: Any, args: tuple[Any, ...]) -> Any:
    """A result as the program receives it, in memory of torch's; an argument stays what it is."""
    if isinstance(result, torch.Tensor):
        return result if any(result is each for each in args) else in_torch(result)
    if isinstance(result, tuple | list):
        return type(result)(_received(each, args) for each in result)
    return result


def write(numbers: Numbers, target: torch.Tensor, result: torch.Tensor) -> None:
    """Write a result into a tensor, a mask as zeros and ones if the tensor holds numbers."""
    target.copy_(numbers.lift(result) if target.is_floating_point() else result)


def foreach(
    func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], run: Callable[..., Any]
) -> list[Any] | None:
    """A foreach operator as a loop; `run` calls an operator with arguments."""
    short = str(schema_of(func).name).removeprefix("aten::" + FOREACH)
    place = short.endswith("_")
    base = short.removesuffix("_")
    packet = getattr(torch.ops.aten, _FOREACH_NAMES.get(base, base))
    if base in _FOREACH_VALUES and len(args) == 4:
        *given_args, value = args
        args, kwargs = tuple(given_args), {"value": value}
    if "scalars" in kwargs:
        kwargs = {"value": kwargs["scalars"]}
    outputs = kwargs.get("out")
    given = {key: each for key, each in kwargs.items() if key != "out"}
    count = next(len(each) for each in args if isinstance(each, list | tuple))
    results = [
        run(
            packet,
            *(_at(each, index) for each in args),
            **{key: _at(each, index) for key, each in given.items()},
        )
        for index in range(count)
    ]
    targets = args[0] if place else outputs
    if targets is None:
        return results
    for target, result in zip(targets, results, strict=True):
        run(torch.ops.aten.copy_, target, result)
    return None


def _at(argument: Any, index: int) -> Any:
    return argument[index] if isinstance(argument, list | tuple) else argument
