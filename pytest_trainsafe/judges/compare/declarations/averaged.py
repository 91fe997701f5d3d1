"""Distinguishes wrong gradients from correct ones that the reduction averages over ranks later.

Called by `propose`.  If each rank's loss is a mean over the rank's own share of the batch (as under
torch's DistributedDataParallel), its gradients are dp·cp times those of the whole step until the
reduction averages them.  Such a candidate trains correctly.  The recorder recognises torch's own
wrappers.  Hand-written wrappers, and wrappers that do not average although they look like those of
torch, need annotations.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

import torch

from pytest_trainsafe.align.logical import logical_tensor
from pytest_trainsafe.core.layout import Partial, Scaled
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.judges.compare.compare import compare
from pytest_trainsafe.judges.compare.comparison import Comparison
from pytest_trainsafe.judges.compare.declarations.adopt import adopt_means, drop_means
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.judges.loosen import Loosen
from pytest_trainsafe.trace.reader import Trace

#: The kinds recorded before the reduction.  A missing declaration of a mean affects no other kind.
BEFORE = frozenset({"loss", "activation_grad", "param_grad"})

#: For how many parameters it is checked whether the optimizer receives the sum of the
#: micro-batches' gradients.
FEW = 8

#: The largest relative error that rounding in the narrowest dtype explains: between a main gradient
#: and a multiple of the sum of its terms, between two such multiples, and between two norms.
SUMS = 0.05

#: The kind of gradients that are reduced and not yet clipped.
UNCLIPPED = "unclipped_grad"


@dataclasses.dataclass(frozen=True, slots=True)
class Means:
    """A change of the declared means (averages) over ranks that explains all wrong tensors.

    `tensors` counts the wrong tensors.
    `gradients` are the axes over which gradients before the reduction are means, and `loss` the
    axes over which reported losses are means.  `alike` is another axis of the same size that would
    explain the wrong tensors too, "" if there is none.
    If `dropped` is not empty, the candidate declares gradients as means over the axes in
    `dropped`, and all tensors are correct without that declaration; `wrapper` is then the wrapper
    that was assumed to average, "" if annotations declare the means.  If clipping hides whether the
    reduction averages, `clipped` is the factor by which clipping scales all gradients; otherwise
    `clipped` is 1.0.
    """

    gradients: tuple[str, ...]
    loss: tuple[str, ...]
    tensors: int
    alike: str = ""
    dropped: tuple[str, ...] = ()
    wrapper: str = ""
    clipped: float = 1.0


@dataclasses.dataclass(frozen=True, slots=True)
class _Way:
    """A change to try of the candidate's declaration of averages over ranks.

    The change declares gradients as averages over the axes `gradients`, and losses over the axes
    `loss`.  If `dropped` is not empty, the change instead removes the declaration that gradients
    are averages over the axes in `dropped`.
    """

    gradients: tuple[str, ...] = ()
    loss: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()

    def adopted(self, candidate: Trace) -> Trace:
        """A copy of the candidate with this change."""
        if self.dropped:
            return drop_means(candidate)
        return adopt_means(candidate, self.gradients, self.loss)


def may_be_means(rung: RungTraces, comparison: Comparison) -> bool:
    """Whether adding or removing a declared average could explain all wrong tensors."""
    return bool(_wrong(comparison)) and any(_ways(rung.candidate, comparison))


def means(rung: RungTraces, comparison: Comparison, loosen: Sequence[Loosen]) -> Means | None:
    """The declaration of averages with which the whole candidate passes; None if there is none."""
    count = _wrong(comparison)
    if not count:
        return None
    # An optimizer that normalises each gradient hides their scale.
    factor = _factor(rung.reference)
    if factor is None:
        return None
    clipped = 1.0
    if abs(factor - 1) > SUMS and not _scale_is_seen(rung.reference, comparison):
        clipped = factor
    sizes = rung.candidate.sizes
    for way in _ways(rung.candidate, comparison):
        tried = way.adopted(rung.candidate)
        if not compare(dataclasses.replace(rung, candidate=tried), loosen).failed:
            single = len(way.gradients) == 1 and sizes["dp"] == sizes["cp"]
            alike = next(iter({"dp", "cp"} - {*way.gradients})) if single else ""
            wrapper = next(iter(rung.candidate.ranks[0].note("averages")), "")
            return Means(way.gradients, way.loss, count, alike, way.dropped, wrapper, clipped)
    return None


def _wrong(comparison: Comparison) -> int:
    """The number of wrong tensors; 0 if no declaration of a mean could explain them.

    A declaration cannot explain a wrong tensor that is recorded after the reduction: the result is
    0 if there is one.  It is also 0 if no main gradient was compared, or if some tensors could not
    be judged.
    """
    ids = {f.where for f in comparison.findings if f.verdict == "fail"}
    if comparison.suspects or any(id is None or id.kind not in BEFORE for id in ids):
        return 0
    return len(ids) if comparison.compared["main_grad"] else 0


def _ways(candidate: Trace, comparison: Comparison) -> Iterator[_Way]:
    """Yields the changes to try of the declared averages over ranks, the most likely first."""
    axes = [axis for axis in ("dp", "cp") if candidate.sizes[axis] > 1]
    wrong = comparison.wrong
    # A micro-batch belongs to one dp rank, so its loss is the mean over dp of that rank's report.
    loss = ("dp",) if wrong["loss"] else ()
    if not axes or not {*loss} <= {*axes}:
        return
    declared = _declared(candidate)
    if not wrong["activation_grad"] + wrong["param_grad"]:
        # Only losses are wrong: a mean is proposed only if gradients are declared means.
        if loss and declared:
            yield _Way(loss=loss)
    elif declared:
        if not loss:
            yield _Way(dropped=declared)
    else:
        reported = _loss_means(candidate)
        for over in dict.fromkeys([(axes[0],), tuple(axes), (axes[-1],)]):
            if reported <= {*over}:
                yield _Way(over, loss)


def _loss_means(candidate: Trace) -> set[str]:
    """The axes over which the loss is declared a mean; gradients must be means over them too."""
    return {
        placement.axis
        for rank in candidate.ranks
        for id, event in rank.tensors.items()
        if id.kind == "loss"
        for placement in event.layout
        if isinstance(placement, Partial) and placement.op == "avg"
    }


def _declared(candidate: Trace) -> tuple[str, ...]:
    """The axes over which annotations or the framework already declare a mean."""
    found = (
        placement.axis
        for rank in candidate.ranks
        for event in rank.tensors.values()
        for placement in event.layout
        if isinstance(placement, Scaled)
    )
    return tuple(dict.fromkeys(found))


def _factor(reference: Trace) -> float | None:
    """The factor from the sum of the micro-batches' gradients to what the optimizer receives.

    It is 1.0 if the sum is unchanged, and less if all gradients are clipped together by their norm.
    None if the first parameters (at most `FEW`) have no factor in common.
    """
    terms = _terms(reference)
    given = (id for id in reference.ids() if id.kind == "main_grad" and id.step == 0)
    factors = []
    for id in itertools.islice((id for id in given if id.path in terms), FEW):
        due, total = logical_tensor(reference, id).whole, _total(reference, terms[id.path])
        if due is None or total is None:
            return None
        power = float(total.square().sum())
        if power == 0:
            continue
        factor = float((due.double() * total).sum()) / power
        if float((due.double() - factor * total).norm()) > SUMS * float(due.double().norm()):
            return None
        factors.append(factor)
    if not factors or min(factors) <= 0 or max(factors) > (1 + SUMS) * min(factors):
        return None
    return sum(factors) / len(factors)


def _scale_is_seen(reference: Trace, comparison: Comparison) -> bool:
    """Whether a compared tensor shows the scale of the reduced gradients before clipping.

    Such a tensor is a gradient before clipping, or a gradient norm that the reference reports
    before clipping.  The caller, `means`, has found no wrong tensor among those recorded after the
    reduction.  So if such a tensor was compared, the candidate's reduction yields the sum of the
    micro-batches' gradients, and not a multiple of this sum.
    """
    if comparison.compared[UNCLIPPED]:
        return True
    norms = (id for id in reference.ids() if id.kind == "grad_norm" and id.step == 0)
    reported = next(norms, None)
    if reported is None or not comparison.compared["grad_norm"]:
        return False
    value, power = logical_tensor(reference, reported).whole, 0.0
    for parts in _terms(reference).values():
        total = _total(reference, parts)
        if total is None:
            return False
        power += float(total.square().sum())
    return value is not None and abs(float(value) - power**0.5) <= SUMS * power**0.5


def _terms(reference: Trace) -> dict[str, list[TensorId]]:
    """The micro-batches' gradients of the first step, by parameter path."""
    terms: dict[str, list[TensorId]] = {}
    for id in reference.ids():
        if id.kind == "param_grad" and id.step == 0:
            terms.setdefault(id.path, []).append(id)
    return terms


def _total(reference: Trace, terms: Sequence[TensorId]) -> torch.Tensor | None:
    """The sum of some tensors; None if one of them cannot be merged."""
    parts = [logical_tensor(reference, term).whole for term in terms]
    if any(part is None for part in parts):
        return None
    return torch.stack([part.double() for part in parts if part is not None]).sum(0)


def hidden(averaged: Means) -> str:
    """The message if the declaration `averaged` explains all wrong tensors but is not confirmed.

    Clipping scales all gradients, which hides whether the reduction averages them over ranks.
    """
    gradients = averaged.gradients or averaged.dropped
    what = "gradients before the reduction" if gradients else "losses"
    over = f"{'not ' * bool(averaged.dropped)}means over {' and '.join(gradients or averaged.loss)}"
    return (
        f"the {what} match the reference if they are {over}, but all gradients are multiplied by "
        f"{averaged.clipped:.3g} before the optimizer's step, so no compared tensor shows whether "
        "the reduction averages; if it does not, the loss is wrong. To show it, report the "
        "gradient norm before clipping with ctx.before_clip(norm, limit) or ctx.grad_norm(norm): "
        "then the annotations are proposed, or the loss is named"
    )
