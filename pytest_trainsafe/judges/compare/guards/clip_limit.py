"""Recognises a clip of gradients at another limit than the reference's.

What is compared is the larger of the norm and its limit, since a smaller norm has no effect.
"""

from __future__ import annotations

from pytest_trainsafe.align.logical import logical_tensor
from pytest_trainsafe.core.finding import Finding, Pattern
from pytest_trainsafe.core.tensor_id import CLIP_NORM
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.trace.reader import Trace


def limits_apart(candidate: Trace, reference: Trace) -> tuple[str, str] | None:
    """The limits at which candidate and reference clip, in words; None if they are the same."""
    ours, theirs = (
        {limit for rank in trace.ranks for limit in rank.note("clip_limit")}
        for trace in (candidate, reference)
    )
    if ours == theirs or not ours or not theirs:
        return None
    return " and ".join(sorted(ours)), " and ".join(sorted(theirs))


def clip_limit(rung: RungTraces, lead: Finding) -> Pattern | None:
    """The pattern of the norm of a clip whose value is the limit, unlike the reference's.

    For `lead`, the first wrong tensor.  None if the norm is above the candidate's limit: then the
    norm itself is wrong.
    """
    where, apart = lead.where, limits_apart(rung.candidate, rung.reference)
    if apart is None or where is None or (where.kind, where.name) != ("grad_norm", CLIP_NORM):
        return None
    value = logical_tensor(rung.candidate, where).tensor
    if value is None or value.numel() != 1 or repr(float(value)) not in apart[0].split(" and "):
        return None
    text = f"the candidate clips its gradients at a norm of {apart[0]}, the reference at {apart[1]}"
    cause = "the limit of the clip is another one; the norm is not above the candidate's limit"
    return Pattern("clip limit", text, cause=cause, short=f"clips at {apart[0]}, not at {apart[1]}")
