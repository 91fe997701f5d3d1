"""Finds gradients of activations of which each rank holds an equal term of a sum over ranks.

Ranks may compute a number together, such as an auxiliary loss of the whole batch, and each adds it
to the loss of its own share.  If each divides its loss by their number, every rank holds 1/n of
the number's gradient, and the backward of the common computation adds them up.  A division that is
one too many looks the same, but then what is computed from the gradient is wrong, too.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Collection, Sequence

import msgspec
import torch

from pytest_trainsafe.align.merge import Merged
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.judges.compare.patterns.partial_sum import names_axis
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.trace.local_key_paths import is_local

#: The kinds that a backward computes from the gradient of an activation, and those of whole steps.
_COMPUTED = frozenset({"activation_grad", "param_grad"})
_REDUCED = frozenset({"main_grad", "unclipped_grad"})


def equal_terms(
    rung: RungTraces,
    id: TensorId,
    merged: Merged,
    passes: Callable[[torch.Tensor], bool] | None,
) -> tuple[str, ...]:
    """The axes over which the ranks' equal values add up to one that `passes`; () if they do not.

    For the gradient of an activation that every rank holds whole.  () too on exact numbers: a proof
    is one of each tensor.
    """
    if passes is None or rung.numbers.exact or id.kind != "activation_grad":
        return ()
    candidate, parts = rung.candidate, merged.parts
    if merged.findings or merged.tensor is None or len(parts) < len(candidate.ranks):
        return ()
    axes = [
        axis
        for axis, size in candidate.sizes.items()
        if size > 1 and not any(names_axis(part, axis) for part in parts)
    ]
    if not axes or passes(merged.tensor):
        return ()
    for count in range(1, len(axes) + 1):
        for over in itertools.combinations(axes, count):
            number = math.prod(candidate.sizes[axis] for axis in over)
            if passes(candidate.numbers.scale(merged.tensor, number)):
                return over
    return ()


def are_confirmed(
    rung: RungTraces, wrong: Sequence[TensorId], compared: Counter[str], local: Collection[str]
) -> bool:
    """Whether everything that is computed from such gradients was compared and is right.

    `wrong` are the wrong tensors of the step, and `compared` counts the compared ones by kind.
    Other gradients of activations are computed from them, and those of parameters in each
    micro-batch.  Of a parameter of which none was compared, it is the gradient of the step; an
    expert's, whose micro-batch gradients are `local`, tells nothing.  Clipping hides a factor of
    all gradients, so some must be compared from before it.
    """
    if any(id.kind in _COMPUTED for id in wrong):
        return False
    seen = {id.path for id in rung.candidate.ids() if id.kind == "param_grad"}
    reduced = [id for id in wrong if id.kind in _REDUCED and id.path not in seen]
    if not all(is_local(msgspec.structs.replace(id, kind="param_grad"), local) for id in reduced):
        return False
    if compared["param_grad"] or compared["unclipped_grad"]:
        return True
    traces = (rung.candidate, rung.reference)
    clipped = any(rank.note("clipped") for trace in traces for rank in trace.ranks)
    return bool(compared["main_grad"]) and not clipped and not compared["grad_norm"]
