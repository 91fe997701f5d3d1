"""Another mask: zeros in other places than the reference's, and what neither masks is right."""

from __future__ import annotations

from pytest_trainsafe.compare.wrong import Wrong, norm
from pytest_trainsafe.finding import Pattern


def other_mask(wrong: Wrong) -> Pattern | None:
    """Some values are zero here alone, others in the reference alone; most are shared, and right.

    With few in common a tensor of many zeros would look like another mask of any other.  Where
    whole rows are masked otherwise, which rows they are says more (`confined`).
    """
    kept, due = wrong.value != 0, wrong.reference != 0
    here, there, shared = ~kept & due, kept & ~due, kept & due
    if not (bool(here.any()) and bool(there.any()) and 2 * int(shared.sum()) >= int(due.sum())):
        return None
    other = here | there
    if wrong.value.ndim > 1 and not bool((other.any(-1) & shared.any(-1)).any()):
        return None
    rest = (wrong.value - wrong.reference).masked_fill(~shared, 0)
    if not wrong.settles(norm(rest)):
        return None
    text = (
        f"{int(here.sum())} values are zero here alone and {int(there.sum())} in the reference "
        "alone, and the others are right"
    )
    cause = (
        "another mask is applied than the reference's. Dropout draws another where ranks share out "
        "the micro-batches: seed it in each micro-batch, or switch it off"
    )
    return Pattern("other mask", text, cause=cause)
