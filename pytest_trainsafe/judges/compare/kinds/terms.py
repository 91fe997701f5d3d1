"""Finds gradients of activations of which each rank holds one term of a sum over ranks.

Ranks that divide a batch may each hold a number or tensor of the whole batch, such as an auxiliary
loss or the features of all examples, and use it for their own share of the loss.  Then the gradient
on each rank is a term, and the backward of what made the tensor adds the terms up.  A sum that is
forgotten, and a division that is one too many, look the same, but then what is computed from the
gradient is wrong, too.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Sequence

import msgspec
import torch

from pytest_trainsafe.align.merge import Merged, merge
from pytest_trainsafe.core.layout import Partial
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.judges.compare.patterns.partial_sum import names_axis
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.trace.local_key_paths import is_local

#: The roles of axes whose ranks have examples or tokens of their own.
_DATA = frozenset({"dp", "cp"})

#: The kinds that a backward computes from the gradient of an activation, and those of whole steps.
_COMPUTED = frozenset({"activation_grad", "param_grad"})
_REDUCED = frozenset({"main_grad", "unclipped_grad"})


def summed_over(
    rung: RungTraces,
    id: TensorId,
    merged: Merged,
    passes: Callable[[torch.Tensor], bool] | None,
) -> tuple[str, ...]:
    """The axes over which the ranks' values add up to one that `passes`; () if they do not.

    For the gradient of an activation that every rank holds whole, and axes along which ranks have
    examples or tokens of their own.  () too on exact numbers: a proof is one of each tensor.
    """
    if passes is None or rung.numbers.exact or id.kind != "activation_grad":
        return ()
    candidate, parts = rung.candidate, merged.parts
    odd = any(finding.check != "replicas" for finding in merged.findings)
    if odd or merged.tensor is None or len(parts) < len(candidate.ranks):
        return ()
    axes = [
        axis
        for axis, size in candidate.sizes.items()
        if size > 1 and candidate.sizes.mesh.role(axis) in _DATA
        if not any(names_axis(part, axis) for part in parts)
    ]
    if not axes or (passes(merged.tensor) and not merged.findings):
        return ()
    for count in range(1, len(axes) + 1):
        for over in itertools.combinations(axes, count):
            partial = tuple(Partial(axis) for axis in over)
            terms = [msgspec.structs.replace(part, layout=part.layout + partial) for part in parts]
            shape = tuple(merged.tensor.shape)
            total = merge(terms, candidate.sizes, shape=shape, where=id, numbers=rung.numbers)
            if total.tensor is not None and not total.findings and passes(total.tensor):
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
