"""Tells gradients that are yet to be averaged over ranks from gradients that are wrong.

Called by `propose`.  A loss that is a mean over one rank's own share (as under torch's
DistributedDataParallel) has gradients that are dp·cp times the whole step's, until the reduction
averages them.  Such a candidate trains the same; which it is, only its annotations can say.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

from pytest_trainsafe.align.adopt import adopt_means
from pytest_trainsafe.align.layout import Partial, Scaled
from pytest_trainsafe.align.logical import logical_tensor
from pytest_trainsafe.compare.comparison import Comparison
from pytest_trainsafe.compare.judge import compare
from pytest_trainsafe.compare.loosen import Loosen
from pytest_trainsafe.compare.rung import Rung
from pytest_trainsafe.trace.reader import Trace
from pytest_trainsafe.trace.schema import TensorId

#: What comes before the reduction.  All that is wrong must be of these kinds.
BEFORE = frozenset({"loss", "activation_grad", "param_grad"})

#: Parameters of which it is looked whether the optimizer is given the sum of their terms.
FEW = 8

#: How far a main gradient may be from the sum of its terms, as a share of its norm: rounding of
#: the narrowest dtype, and far less than what clipping or normalising does.
SUMS = 0.05


@dataclasses.dataclass(frozen=True, slots=True)
class Means:
    """The axes over which gradients, and reported losses, are means of the ranks' own.

    `tensors` counts the tensors that are right with it; `alike` is an axis of as many ranks, over
    which it may be instead.
    """

    gradients: tuple[str, ...]
    loss: tuple[str, ...]
    tensors: int
    alike: str = ""


def may_be_means(rung: Rung, comparison: Comparison) -> bool:
    """Whether a mean that nobody declared could explain all that is wrong."""
    return bool(_wrong(comparison)) and any(_ways(rung.candidate, comparison))


def means(rung: Rung, comparison: Comparison, loosen: Sequence[Loosen]) -> Means | None:
    """The means with which everything fits its reference; None where there are none."""
    count = _wrong(comparison)
    # Clipped or normalised, a sum and a mean are the same to the optimizer.
    if not count or not _sums_its_terms(rung.reference):
        return None
    sizes = rung.candidate.sizes
    for gradients, loss in _ways(rung.candidate, comparison):
        tried = adopt_means(rung.candidate, gradients, loss)
        if not compare(dataclasses.replace(rung, candidate=tried), loosen).failed:
            single = len(gradients) == 1 and sizes["dp"] == sizes["cp"]
            alike = next(iter({"dp", "cp"} - {*gradients})) if single else ""
            return Means(gradients, loss, count, alike)
    return None


def _wrong(comparison: Comparison) -> int:
    """How many tensors are wrong; 0 where one comes after the reduction, or none after it was
    compared, or some could not be judged."""
    ids = {f.where for f in comparison.findings if f.verdict == "fail"}
    if comparison.suspects or any(id is None or id.kind not in BEFORE for id in ids):
        return 0
    return len(ids) if comparison.compared["main_grad"] else 0


def _ways(
    candidate: Trace, comparison: Comparison
) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """The axes over which gradients, and losses, may be means; the likeliest first."""
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
            yield (), loss
    elif not declared:
        told = _loss_means(candidate)
        for over in dict.fromkeys([(axes[0],), tuple(axes), (axes[-1],)]):
            if told <= {*over}:
                yield over, loss


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


def _declared(candidate: Trace) -> bool:
    """Whether the annotations, or the framework, say already what is to be averaged."""
    return any(
        isinstance(placement, Scaled)
        for rank in candidate.ranks
        for event in rank.tensors.values()
        for placement in event.layout
    )


def _sums_its_terms(reference: Trace) -> bool:
    """Whether the optimizer is given the sum of the micro-batches' gradients, as far as is seen."""
    terms: dict[str, list[TensorId]] = {}
    for id in reference.ids():
        if id.kind == "param_grad" and id.step == 0:
            terms.setdefault(id.path, []).append(id)
    first = [id for id in reference.ids() if id.step == 0]
    unclipped = [id for id in first if id.kind == "unclipped_grad"]
    given = unclipped or [id for id in first if id.kind == "main_grad"]
    seen = False
    for id in itertools.islice((id for id in given if id.path in terms), FEW):
        due = logical_tensor(reference, id).tensor
        parts = [logical_tensor(reference, term).tensor for term in terms[id.path]]
        if due is None or any(part is None for part in parts):
            return False
        total = sum(part.double() for part in parts if part is not None)
        if float((due.double() - total).norm()) > SUMS * float(due.double().norm()):
            return False
        seen = True
    return seen
