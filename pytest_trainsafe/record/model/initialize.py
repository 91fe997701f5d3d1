"""Fills parameters with initial values that depend on their names and not on their layouts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch
from torch import nn

from pytest_trainsafe.align.words import describe
from pytest_trainsafe.annotations.declared import Annotations
from pytest_trainsafe.compat.tensors import version_of
from pytest_trainsafe.core.layout import Layout, axes_of
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.core.rungs.rung import Enter
from pytest_trainsafe.errors import ArgumentTypeError
from pytest_trainsafe.record.adapter import renaming
from pytest_trainsafe.record.clock import ProgramError
from pytest_trainsafe.record.layouts.dtensor import is_dtensor
from pytest_trainsafe.record.model.consistent import consistent_tensor
from pytest_trainsafe.record.model.names import split
from pytest_trainsafe.record.model.parameter_layout import parameter_layout
from pytest_trainsafe.record.model.parts import Model, named_parameters, parts_of, unique_parameters
from pytest_trainsafe.record.model.shard_shapes import Exchange, logical_shapes
from pytest_trainsafe.record.tensors import local_values, tensor_hash
from pytest_trainsafe.trace.facts import Overwritten
from pytest_trainsafe.trace.tensors.snapshot import outside_modes
from pytest_trainsafe.trace.writer import RankWriter

#: `(mean, standard deviation)` of a parameter, from its canonical name and logical shape.
Std = Callable[[str, tuple[int, ...]], tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Filled:
    """The layout that `fill` assumed for a parameter, and its shape and version at that time.

    `own` is the hash of the values that the program had given it, and `written` whether an
    operation had written any in place.
    """

    layout: Layout
    shape: torch.Size
    version: int
    own: str
    written: bool


def default_std(name: str, shape: tuple[int, ...]) -> tuple[float, float]:
    """The default mean and standard deviation of a parameter.

    With two or more dimensions: mean 0, std 1/sqrt(fan_in).  With fewer: mean 1, std 0.1 for a
    parameter named `weight`, which is the scale of a norm; mean 0, std 0.02 for others (biases).
    """
    if len(shape) >= 2:
        return 0.0, 1.0 / math.sqrt(math.prod(shape[1:]))
    if split(name)[1] == "weight":
        return 1.0, 0.1
    return 0.0, 0.02


@torch.no_grad()
def fill(
    model: Model,
    point: Point,
    coordinates: Mapping[str, int],
    seed: int,
    std: Std,
    annotations: Annotations,
    exchange: Exchange | None = None,
    enter: Enter | None = None,
    earlier: Mapping[int, Filled] | None = None,
) -> dict[int, Filled]:
    """Fills every parameter with this rank's part of the parameter's logical tensor.

    Returns a Filled for each parameter, by the parameter's `id()`.  `exchange` asks other ranks for
    the shapes of their shards; without it all shards count as equally long.  `enter` makes a rung's
    own numbers of the values.  `earlier` is what earlier calls returned: the values of parameters
    in it are not the program's own.
    """
    filled = {}
    parts = parts_of(model)
    rename = renaming(parts, point, coordinates)
    named = ((rename(name), parameter) for name, parameter in named_parameters(parts))
    parameters = unique_parameters(named)
    layouts = {}
    for name, parameter in parameters.items():
        if parameter.is_meta:
            raise ProgramError(
                f"ctx.initialize was given a model on the meta device ({name} has no memory to "
                "fill); call model.to_empty(device=ctx.device) first"
            )
        layouts[name] = parameter_layout(name, parameter, point, annotations)[0]
    held = {
        name: (layouts[name], tuple(parameter.shape))
        for name, parameter in parameters.items()
        if not is_dtensor(parameter)
    }
    logical = logical_shapes(held, coordinates, point.sizes, exchange)
    for name, parameter in parameters.items():
        layout, local = layouts[name], local_values(parameter)
        shape = logical.get(name, tuple(parameter.shape))
        mean, deviation = _statistics(std, name, shape)
        with outside_modes(enter is not None):
            value = consistent_tensor(
                name,
                shape,
                mean=mean,
                std=deviation,
                dtype=local.dtype,
                device=local.device,
                seed=seed,
                layout=layout,
                coordinates=coordinates,
                sizes=point.sizes,
                # Equal values, and simple ones such as 1.5, would not be random numbers of a rung.
                representable=torch.bfloat16 if enter is None else None,
                distinct=enter is not None,
            )
            own, written = _own_values(parameter, local, (earlier or {}).get(id(parameter)))
        local.copy_(value if enter is None else enter(value))
        version = version_of(parameter)
        filled[id(parameter)] = Filled(layout, parameter.shape, version, own, written)
    return filled


def _own_values(
    parameter: nn.Parameter, local: torch.Tensor, earlier: Filled | None
) -> tuple[str, bool]:
    """The hash of the program's own values of a parameter, and whether any were written in place.

    `local` has its present values, and `earlier` what is known if these are not the program's own.
    """
    if earlier is not None:
        return earlier.own, earlier.written
    return tensor_hash(local), version_of(parameter) > 0


def write_overwritten(
    filled: Mapping[int, Filled], parameters: Mapping[str, nn.Parameter], writer: RankWriter
) -> None:
    """Records the program's own values of the watched parameters that `fill` has replaced."""
    found = {name: filled[id(p)] for name, p in parameters.items() if id(p) in filled}
    if found:
        hashes = {name: each.own for name, each in found.items()}
        unwritten = tuple(name for name, each in found.items() if not each.written)
        since = tuple(n for n, each in found.items() if version_of(parameters[n]) != each.version)
        writer.add(Overwritten(hashes, unwritten, since))


def _statistics(std: Std, name: str, shape: tuple[int, ...]) -> tuple[float, float]:
    """The mean and the standard deviation that the function `std` returns for a parameter.

    `name` and `shape` are the parameter's name and logical shape.  Raises ArgumentTypeError if
    `std` is not a function, or returns anything else.
    """
    allowed = (
        "std must be a function of a parameter's name and logical shape that returns its mean "
        "and standard deviation, such as std=lambda name, shape: (0.0, 0.02)"
    )
    if not callable(std):
        raise ArgumentTypeError(f"ctx.initialize was given std={std!r}; {allowed}")
    found: Any = std(name, shape)
    pair = isinstance(found, tuple | list) and len(found) == 2
    if not pair or not all(isinstance(each, Real) for each in found):
        raise ArgumentTypeError(
            f"the std given to ctx.initialize returned {found!r} for {name} of shape "
            f"{list(shape)}; {allowed}"
        )
    return float(found[0]), float(found[1])


def require_filled_as_watched(
    filled: Mapping[int, Filled],
    parameters: Mapping[str, nn.Parameter],
    layouts: Mapping[str, tuple[Layout, str]],
    point: Point,
) -> None:
    """Raises ProgramError if `fill` assumed another layout for a parameter than `ctx.watch` has.

    Such a parameter has the values of other elements, which would be reported as a fault of the
    program.  Parameters that the program has changed since `fill` are ignored.
    """

    def cut(layout: Layout) -> Layout:
        return tuple(p for p in layout if any(point.size(axis) > 1 for axis in axes_of(p)))

    for name, parameter in parameters.items():
        was = filled.get(id(parameter))
        if was is None or (was.shape, was.version) != (parameter.shape, version_of(parameter)):
            continue
        layout, source = layouts[name]
        if cut(was.layout) != cut(layout):
            raise ProgramError(
                f"ctx.initialize filled {name} as {describe(cut(was.layout))}, but in ctx.watch "
                f"the parameter is {describe(cut(layout))} (from {source}); pass the same "
                "annotations to both: ctx.initialize(model, annotations=...)"
            )
