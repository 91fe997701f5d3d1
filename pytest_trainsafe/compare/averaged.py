"""Tells gradients that are yet to be averaged over ranks from gradients that are wrong.

Called by `propose`.  A loss that is a mean over one rank's own share (as under torch's
DistributedDataParallel) has gradients that are dp·cp times the whole step's, until the reduction
averages them.  Such a candidate trains the same; which it is, only its annotations can say.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from pytest_trainsafe.align.adopt import adopt_means
from pytest_trainsafe.align.layout import Scaled
from pytest_trainsafe.compare.comparison import Comparison
from pytest_trainsafe.compare.judge import compare
from pytest_trainsafe.compare.loosen import Loosen
from pytest_trainsafe.compare.rung import Rung
from pytest_trainsafe.trace.reader import Trace

#: What comes before the reduction.  All that is wrong must be of these kinds.
BEFORE = frozenset({"loss", "activation_grad", "param_grad"})


@dataclasses.dataclass(frozen=True, slots=True)
class Means:
    """The axes over which gradients, and reported losses, are means of the ranks' own.

    `tensors` counts the tensors that are right with it.
    """

    gradients: tuple[str, ...]
    loss: tuple[str, ...]
    tensors: int


def may_be_means(rung: Rung, comparison: Comparison) -> bool:
    """Whether a mean that nobody declared could explain all that is wrong."""
    return bool(_wrong(comparison)) and any(_ways(rung.candidate, comparison))


def means(rung: Rung, comparison: Comparison, loosen: Sequence[Loosen]) -> Means | None:
    """The means with which everything fits its reference; None where there are none."""
    count = _wrong(comparison)
    if not count:
        return None
    for gradients, loss in _ways(rung.candidate, comparison):
        tried = adopt_means(rung.candidate, gradients, loss)
        if not compare(dataclasses.replace(rung, candidate=tried), loosen).failed:
            return Means(gradients, loss, count)
    return None


def _wrong(comparison: Comparison) -> int:
    """How many tensors are wrong; 0 where one comes after the reduction, or fits in no layout."""
    failed = [f for f in comparison.findings if f.verdict == "fail"]
    ids = {f.where for f in failed}
    if any(id is None or id.kind not in BEFORE for id in ids):
        return 0
    return len(ids) if comparison.compared["main_grad"] else 0


def _ways(
    candidate: Trace, comparison: Comparison
) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    axes = [axis for axis in ("dp", "cp") if candidate.sizes[axis] > 1]
    wrong = comparison.wrong
    if not axes or _declared(candidate):
        return
    reported = [()] if not wrong["loss"] else [("dp",)] if "dp" in axes else []
    if not wrong["activation_grad"] + wrong["param_grad"]:
        yield from (((), loss) for loss in reported)
        return
    for over in dict.fromkeys([(axes[0],), tuple(axes), (axes[-1],)]):
        yield from ((over, loss) for loss in reported)


def _declared(candidate: Trace) -> bool:
    """Whether the annotations, or the framework, say already what is to be averaged."""
    return any(
        isinstance(placement, Scaled)
        for rank in candidate.ranks
        for event in rank.tensors.values()
        for placement in event.layout
    )
