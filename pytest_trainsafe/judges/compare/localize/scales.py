"""Chooses the mean, spread and range of the values that replace each tensor.

They are similar to the reference's.  Values of another magnitude would change how the program
behaves: they could saturate a softmax, or hide a bias.
"""

from __future__ import annotations

import math

import torch
from msgspec.structs import replace

from pytest_trainsafe.align.logical import is_cut_over_stages, logical_tensor
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.judges.compare.events import own_rewrite_key, rewrite_key
from pytest_trainsafe.trace.reader import Trace
from pytest_trainsafe.trace.run_spec import Rewrite

#: An output with a larger share of exact zeros is not rewritten, because its zeros have a meaning
#: (a mask, dropout, a choice of experts).
MAX_ZEROS = 0.1

#: The least standard deviation of a rewritten gradient, as a share of its mean's magnitude.  The
#: gradients of a mean are all equal, and equal values hide that some are at the wrong place.
LEAST_SPREAD = 0.25

#: The significant digits of a mean or spread.  As these are rounded, references that differ only by
#: rounding give equal values, and so share one cached Run.
DIGITS = 3


def scales(reference: Trace, candidate: Trace, main_gradients: bool = False) -> dict[str, Rewrite]:
    """Maps the key of each output and gradient that both Runs recorded to how it is rewritten.

    With `main_gradients`, these are included, unless a framework's engine takes the steps: it may
    clip or copy gradients after its step has begun.

    Some tensors are left out, and so are not rewritten:

    - those that only one Run has, such as the outputs of the parts of a fused module;
    - those that several pipeline stages record under one name;
    - those of a module whose calls were renumbered (`Trace.renumbered`);
    - those of a module that a stage replaces by a stand-in of a class other than `nn.Identity`;
    - those that are empty, not finite or not floating-point, outputs with many exact zeros, and
      main gradients of zeros.

    The values are measured in the first step and micro-batch that has the tensor.  A micro-batch in
    which its shape is another has a key of its own, with the same scale.
    """
    known = candidate.renumbered | _other_stand_ins(candidate)
    engine = any(rank.note("reduces_in") for t in (candidate, reference) for rank in t.ranks)
    kinds = {"activation", "activation_grad"}
    if main_gradients and not engine:
        kinds.add("main_grad")
    both = {
        rewrite_key(id)
        for id in candidate.ids()
        if id.kind in kinds
        and (id.kind == "main_grad" or id.module not in known)
        and not any(is_cut_over_stages(t, id) for t in (candidate, reference))
    }
    found: dict[str, Rewrite | None] = {}
    cut: dict[str, object] = {}
    for id in reference.ids():
        key = rewrite_key(id)
        if key not in both:
            continue
        if key not in found:
            tensor = logical_tensor(reference, id).whole
            found[key] = None if tensor is None else _scale(id, tensor)
            cut[key] = _cut(reference, id)
        elif (scale := found[key]) is not None and _cut(reference, id) != cut[key]:
            tensor = logical_tensor(reference, id).whole
            if tensor is not None and tuple(tensor.shape) != scale.shape:
                found[own_rewrite_key(id)] = replace(scale, shape=tuple(tensor.shape))
    return {key: scale for key, scale in found.items() if scale is not None}


def _cut(trace: Trace, id: TensorId) -> object:
    """What determines the shape of a logical tensor: the shapes and layouts of its parts."""
    return {(event.shape, event.layout) for _, event in trace.holders(id)}


def _other_stand_ins(candidate: Trace) -> set[str]:
    """The modules that a stage replaces by a stand-in of a class other than `nn.Identity`.

    All that a rank knows of such a stand-in is that it returns its input.
    """
    absent = candidate.stand_ins()
    return {
        name
        for rank in candidate.ranks
        for name in absent.get(rank.coordinates["pp"], ())
        if name in rank.modules and rank.modules[name].cls != "Identity"
    }


def _scale(id: TensorId, tensor: torch.Tensor) -> Rewrite | None:
    if not tensor.is_floating_point() or not tensor.numel() or not bool(tensor.isfinite().all()):
        return None
    zeros = int((tensor == 0).sum()) / tensor.numel()
    mean, std = float(tensor.mean()), float(tensor.std(correction=0))
    shape = tuple(tensor.shape)
    if id.kind == "main_grad" and zeros == 1:
        return None
    if id.kind in ("activation_grad", "main_grad"):
        return Rewrite(shape, _round(mean), _round(max(std, LEAST_SPREAD * abs(mean))))
    if zeros > MAX_ZEROS:
        return None
    low, high = _below(float(tensor.min())), -_below(-float(tensor.max()))
    return Rewrite(shape, _round(mean), _round(std), low, high)


def _round(value: float) -> float:
    return float(f"{value:.{DIGITS - 1}e}")


def _below(value: float) -> float:
    """The greatest 2**n or -2**n that is at most `value`, which every dtype represents; 0 for 0."""
    fraction, power = math.frexp(value)
    if value > 0 or fraction == -0.5:
        power -= 1
    return math.copysign(2.0**power, value) if value else 0.0
