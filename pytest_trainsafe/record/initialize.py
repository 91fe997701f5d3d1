"""Consistent initial parameters: each a function of its name, whatever the layout."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch

from pytest_trainsafe.align.annotations import Annotations
from pytest_trainsafe.align.dtensor import is_dtensor
from pytest_trainsafe.align.indices import scale_shape
from pytest_trainsafe.align.resolve import parameter_layout
from pytest_trainsafe.record.clock import ProgramError
from pytest_trainsafe.record.consistent import consistent_tensor
from pytest_trainsafe.record.deepspeed_experts import renumbering
from pytest_trainsafe.record.names import split
from pytest_trainsafe.record.parameters import unique_parameters
from pytest_trainsafe.record.parts import Model, named_parameters, parts_of
from pytest_trainsafe.record.tensors import local_values
from pytest_trainsafe.sweep.point import Point

#: `(mean, standard deviation)` of a parameter, from its canonical name and logical shape.
Std = Callable[[str, tuple[int, ...]], tuple[float, float]]


def default_std(name: str, shape: tuple[int, ...]) -> tuple[float, float]:
    """Weights 1/sqrt(fan_in), biases 0.02 about 0, scales of normalisation 0.1 about 1."""
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
) -> None:
    """Give every parameter its part of the logical tensor of its name."""
    parts = parts_of(model)
    rename = renumbering(parts, point, coordinates)
    named = ((rename(name), parameter) for name, parameter in named_parameters(parts))
    for name, parameter in unique_parameters(named).items():
        if parameter.is_meta:
            raise ProgramError(
                f"ctx.initialize was given a model on the meta device ({name} has no memory to "
                "fill); call model.to_empty(device=ctx.device) before it"
            )
        layout, _ = parameter_layout(name, parameter, point, annotations)
        local, shape = local_values(parameter), tuple(parameter.shape)
        if not is_dtensor(parameter):
            shape = scale_shape(shape, layout, point.sizes)
        mean, deviation = std(name, shape)
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
        )
        local.copy_(value)
