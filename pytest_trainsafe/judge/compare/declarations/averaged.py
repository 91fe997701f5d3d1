"""Tells gradients that are yet to be averaged over ranks from gradients that are wrong.

Called by `propose`.  A loss that is a mean over one rank's own share (as under torch's
DistributedDataParallel) has gradients that are dp·cp times the whole step's, until the reduction
averages them.  Such a candidate trains the same.  The recorder knows torch's own wrappers; of a
hand-written one, or of one that does not average though it looks as if, only annotations can say.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

import torch

from pytest_trainsafe.align.logical import logical_tensor
from pytest_trainsafe.core.layout import Partial, Scaled
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.judge.compare.comparison import Comparison
from pytest_trainsafe.judge.compare.declarations.adopt import adopt_means, drop_means
from pytest_trainsafe.judge.compare.judge import compare
from pytest_trainsafe.judge.compare.rung import Rung
from pytest_trainsafe.judge.compare.tolerance.loosen import Loosen
from pytest_trainsafe.trace.reader import Trace

#: What comes before the reduction.  All that is wrong must be of these kinds.
BEFORE = frozenset({"loss", "activation_grad", "param_grad"})

#: Parameters of which it is looked whether the optimizer is given the sum of their terms.
FEW = 8

#: How far a main gradient may be from a multiple of the sum of its terms, as a share of its norm,
#: and multiples, and norms, from each other: rounding of the narrowest dtype.
SUMS = 0.05

#: Kinds that show gradients as they are after the reduction and before they are clipped.
UNCLIPPED = "unclipped_grad"


@dataclasses.dataclass(frozen=True, slots=True)
class Means:
    """The axes over which gradients, and reported losses, are means of the ranks' own.

    `tensors` counts the tensors that are right with it; `alike` is an axis of as many ranks, over
    which it may be instead.  Where `dropped` is not empty, gradients are declared to be means over
    these axes and are right if they are none; `wrapper` names the wrapper that was taken to
    average, "" where annotations say so.  `clipped` is the factor by which clipping multiplies all
    gradients, where it hides whether the reduction averages; 1.0 where that is known.
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
    """Axes to declare means over; or, with `dropped`, those not to."""

    gradients: tuple[str, ...] = ()
    loss: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()

    def adopted(self, candidate: Trace) -> Trace:
        if self.dropped:
            return drop_means(candidate)
        return adopt_means(candidate, self.gradients, self.loss)


def may_be_means(rung: Rung, comparison: Comparison) -> bool:
    """Whether a mean that is not declared, or one that is, could explain all that is wrong."""
    return bool(_wrong(comparison)) and any(_ways(rung.candidate, comparison))


def means(rung: Rung, comparison: Comparison, loosen: Sequence[Loosen]) -> Means | None:
    """The means with which everything fits its reference; None where there are none."""
    count = _wrong(comparison)
    if not count:
        return None
    # Normalised one by one, gradients do not show what they were.
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
    """How many tensors are wrong; 0 where one comes after the reduction, or none after it was
    compared, or some could not be judged."""
    ids = {f.where for f in comparison.findings if f.verdict == "fail"}
    if comparison.suspects or any(id is None or id.kind not in BEFORE for id in ids):
        return 0
    return len(ids) if comparison.compared["main_grad"] else 0


def _ways(candidate: Trace, comparison: Comparison) -> Iterator[_Way]:
    """What may be declared of gradients and losses; the likeliest first."""
    axes = [axis for axis in ("dp", "cp") if candidate.sizes[axis] > 1]
    wrong = comparison.wrong
    # A micro-batch is one dp rank's: its loss is the mean over dp of what that rank tells.
    loss = ("dp",) if wrong["loss"] else ()
    if not axes or not {*loss} <= {*axes}:
        return
    declared = _declared(candidate)
    if not wrong["activation_grad"] + wrong["param_grad"]:
        # A loss alone is wrong, unless it is known that gradients are means.
        if loss and declared:
            yield _Way(loss=loss)
    elif declared:
        if not loss:
            yield _Way(dropped=declared)
    else:
        told = _loss_means(candidate)
        for over in dict.fromkeys([(axes[0],), tuple(axes), (axes[-1],)]):
            if told <= {*over}:
                yield _Way(over, loss)


def _loss_means(candidate: Trace) -> set[str]:
    """The axes over which the loss is declared a mean: the gradients are so too, then."""
    return {
        placement.axis
        for rank in candidate.ranks
        for id, event in rank.tensors.items()
        if id.kind == "loss"
        for placement in event.layout
        if isinstance(placement, Partial) and placement.op == "avg"
    }


def _declared(candidate: Trace) -> tuple[str, ...]:
    """The axes over which annotations, or the framework, say already what is to be averaged."""
    found = (
        placement.axis
        for rank in candidate.ranks
        for event in rank.tensors.values()
        for placement in event.layout
        if isinstance(placement, Scaled)
    )
    return tuple(dict.fromkeys(found))


def _factor(reference: Trace) -> float | None:
    """What the sum of the micro-batches' gradients is multiplied by before the optimizer's step.

    1.0 where nothing is done to it, less where all gradients are clipped together by their norm;
    None where a few parameters have no factor in common.
    """
    terms = _terms(reference)
    given = (id for id in reference.ids() if id.kind == "main_grad" and id.step == 0)
    factors = []
    for id in itertools.islice((id for id in given if id.path in terms), FEW):
        due, total = logical_tensor(reference, id).tensor, _total(reference, terms[id.path])
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
    """Whether what was compared shows gradients, or their norm, from before they are clipped.

    All that comes after the reduction is right, so the candidate's reduction then gives what the
    reference's micro-batches add up to, and no multiple of it.
    """
    if comparison.compared[UNCLIPPED]:
        return True
    norms = (id for id in reference.ids() if id.kind == "grad_norm" and id.step == 0)
    told = next(norms, None)
    if told is None or not comparison.compared["grad_norm"]:
        return False
    value, power = logical_tensor(reference, told).tensor, 0.0
    for parts in _terms(reference).values():
        total = _total(reference, parts)
        if total is None:
            return False
        power += float(total.square().sum())
    return value is not None and abs(float(value) - power**0.5) <= SUMS * power**0.5


def _terms(reference: Trace) -> dict[str, list[TensorId]]:
    """The micro-batches' gradients of the first step, by parameter."""
    terms: dict[str, list[TensorId]] = {}
    for id in reference.ids():
        if id.kind == "param_grad" and id.step == 0:
            terms.setdefault(id.path, []).append(id)
    return terms


def _total(reference: Trace, terms: Sequence[TensorId]) -> torch.Tensor | None:
    """The sum of some tensors; None where one cannot be put together."""
    parts = [logical_tensor(reference, term).tensor for term in terms]
    if any(part is None for part in parts):
        return None
    return torch.stack([part.double() for part in parts if part is not None]).sum(0)
