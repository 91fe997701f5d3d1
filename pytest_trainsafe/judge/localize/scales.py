"""Chooses the values with which tensors are rewritten: similar to those of the reference.

Random values of another magnitude would change the behaviour: saturate a softmax, or hide a bias.
"""

from __future__ import annotations

import math

import torch

from pytest_trainsafe.align.logical import is_cut_over_stages, logical_tensor
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.record.inject.rewrite import rewrite_key
from pytest_trainsafe.trace.reader import Trace
from pytest_trainsafe.trace.run_spec import Rewrite

#: If more than this share of an output is exactly zero, the zeros have a meaning (a mask, dropout,
#: a choice of experts), and it is not rewritten.
MAX_ZEROS = 0.1

#: Gradients of a mean are all equal, and equal gradients hide misplaced ones.
LEAST_SPREAD = 0.25

#: The digits of a scale: reruns of a reference that differ in rounding then share one Run.
DIGITS = 3


def scales(reference: Trace, candidate: Trace) -> dict[str, Rewrite]:
    """How to rewrite the outputs and the gradients that both Runs recorded.

    Tensors that only one of them has (of a fused module's parts) are not rewritten, so that both
    compute the same.  Nor are those that several pipeline stages pass on under one name, or that a
    rank knows under another name or number than the whole does.  Scales come from the first step
    and micro-batch with the tensor.
    """
    known = candidate.renumbered | _other_stand_ins(candidate)
    both = {
        rewrite_key(id)
        for id in candidate.ids()
        if _flows(id)
        and id.module not in known
        and not any(is_cut_over_stages(t, id) for t in (candidate, reference))
    }
    found: dict[str, Rewrite | None] = {}
    for id in reference.ids():
        key = rewrite_key(id)
        if _flows(id) and key in both and key not in found:
            tensor = logical_tensor(reference, id).tensor
            found[key] = None if tensor is None else _scale(id, tensor)
    return {key: scale for key, scale in found.items() if scale is not None}


def _other_stand_ins(candidate: Trace) -> set[str]:
    """The modules that a stage replaces by something other than `nn.Identity`.

    A rank only knows of these that they return their input.
    """
    absent = candidate.stand_ins()
    return {
        name
        for rank in candidate.ranks
        for name in absent.get(rank.coordinates["pp"], ())
        if name in rank.modules and rank.modules[name].cls != "Identity"
    }


def _flows(id: TensorId) -> bool:
    return id.kind in ("activation", "activation_grad")


def _scale(id: TensorId, tensor: torch.Tensor) -> Rewrite | None:
    if not tensor.is_floating_point() or not tensor.numel() or not bool(tensor.isfinite().all()):
        return None
    zeros = int((tensor == 0).sum()) / tensor.numel()
    mean, std = float(tensor.mean()), float(tensor.std(correction=0))
    shape = tuple(tensor.shape)
    if id.kind == "activation_grad":
        return Rewrite(shape, _round(mean), _round(max(std, LEAST_SPREAD * abs(mean))))
    if zeros > MAX_ZEROS:
        return None
    low, high = _below(float(tensor.min())), -_below(-float(tensor.max()))
    return Rewrite(shape, _round(mean), _round(std), low, high)


def _round(value: float) -> float:
    return float(f"{value:.{DIGITS - 1}e}")


def _below(value: float) -> float:
    """The next power of two below, or its negative: every dtype represents it exactly."""
    fraction, power = math.frexp(value)
    if value > 0 or fraction == -0.5:
        power -= 1
    return math.copysign(2.0**power, value) if value else 0.0
