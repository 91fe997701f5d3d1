"""Recognises replicas whose gradients were scaled on only some ranks, for example by clipping.

Called if replicas differ after an optimizer's step.  Each step adds a fixed multiple of a
parameter's gradient to the parameter's first moment.  So if the gradient of one of two replicas was
scaled between the reduction and the step, their first moments differ by a multiple of the gradient.
The layer norms of BLOOM-176B diverged in this way (DeepSpeed #1801).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import torch

from pytest_trainsafe.align.logical import free_axes, parts_of
from pytest_trainsafe.align.merge import Part, merge
from pytest_trainsafe.core.finding import Pattern
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.judges.compare.patterns.partial_sum import names_axis
from pytest_trainsafe.judges.compare.rung import RungTraces

#: The names that optimizers give to the first moment.
FIRST_MOMENTS = ("exp_avg", "momentum_buffer")

#: The share of a difference that need not be a multiple of the gradient, to allow for rounding in
#: bfloat16.
UNEXPLAINED = 0.02


def unevenly_scaled(rung: RungTraces, id: TensorId) -> Pattern | None:
    """The pattern of replicas whose gradients were equal until some ranks scaled theirs.

    It matches if the gradients are equal after the reduction, and the first moments differ by a
    multiple of the gradient.  `id` is a parameter, its update or one of its optimizer states.  None
    if the pattern does not match.
    """
    name = id.name
    if rung.numbers.exact:
        return None  # clipping, the cause, divides by a norm
    if id.kind == "optimizer_state":
        name, _, _ = name.rpartition(".")
    elif id.kind not in ("param", "master_param", "update"):
        return None
    gradient = msgspec.structs.replace(id, kind="main_grad", name=name)
    for moment in FIRST_MOMENTS:
        state = msgspec.structs.replace(id, kind="optimizer_state", name=f"{name}.{moment}")
        found = _uneven(rung, gradient, state, moment)
        if found is not None:
            return found
    return None


def _uneven(rung: RungTraces, gradient: TensorId, state: TensorId, moment: str) -> Pattern | None:
    moments, gradients = parts_of(rung.candidate, state), parts_of(rung.candidate, gradient)
    for axis, size in rung.candidate.sizes.items():
        if size < 2 or any(names_axis(part, axis) for part in [*moments, *gradients]):
            continue
        held = [_at(rung, moments, axis, place, state) for place in range(size)]
        given = [_at(rung, gradients, axis, place, gradient) for place in range(size)]
        for place in range(1, size):
            values = held[0], held[place], given[0], given[place]
            if any(value is None for value in values):
                continue
            share = _multiple(*values)  # type: ignore[arg-type]
            if share is None:
                continue
            more = "plus" if share > 0 else "minus"
            scaled = 0 if share > 0 else place
            text = (
                f"{axis} ranks 0 and {place} had the same gradient after its reduction, but "
                f"{moment} on {axis} rank {place} is that of {axis} rank 0 {more} "
                f"{abs(share):.3g} times this gradient"
            )
            cause = (
                "between its reduction and the optimizer's step, this gradient is scaled down on "
                f"{axis} rank {scaled} only: clipping acts on this rank, but not on the replicas "
                f"of the other ranks of {axis}"
            )
            short = f"the gradient is scaled down on {axis} rank {scaled} only, as by clipping"
            return Pattern("uneven", text, axis, cause, short=short)
    return None


def _at(
    rung: RungTraces, parts: Sequence[Part], axis: str, place: int, id: TensorId
) -> torch.Tensor | None:
    """The logical tensor that the ranks with the coordinate `place` on `axis` hold.

    It is merged from `parts`.  None if these ranks hold no parts, or if their parts do not fit
    together.
    """
    chosen = [part for part in parts if part.coordinates[axis] == place]
    if not chosen:
        return None
    sizes, free = rung.candidate.sizes, free_axes(id)
    return merge(chosen, sizes, free_axes=free, where=id, numbers=rung.numbers).whole


def _multiple(
    first: torch.Tensor, other: torch.Tensor, gradient: torch.Tensor, same: torch.Tensor
) -> float | None:
    """The factor by which the gradient must be multiplied to give the difference of two replicas.

    `gradient` and `same` are the gradients of the two replicas.  None if these differ, or if the
    difference is not a multiple of the gradient.
    """
    power = float(gradient.square().sum())
    if first.shape != gradient.shape or not torch.equal(gradient, same) or power == 0:
        return None
    difference = other - first
    share = float((difference * gradient).sum()) / power
    left = float((difference - share * gradient).norm())
    if share == 0 or left > UNEXPLAINED * float(difference.norm()):
        return None
    return share
