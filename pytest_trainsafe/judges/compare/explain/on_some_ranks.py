"""Recognises a tensor that only some of the ranks with a replica of it computed."""

from __future__ import annotations

from pytest_trainsafe.align.merged import Merged
from pytest_trainsafe.core.finding import Pattern
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.core.usage import name_ranks

_GRADIENTS = ("param_grad", "unclipped_grad", "main_grad")


def on_some_ranks(id: TensorId, merged: Merged) -> Pattern:
    """The pattern of a tensor of which replicas are missing and the others agree."""
    ranks = name_ranks(sorted(part.rank for part in merged.parts))
    if id.kind not in _GRADIENTS:
        text = f"the values on {ranks} agree with the reference, and other ranks have none"
        cause = "the other ranks do not run the code that computes them"
        return Pattern("on some ranks", text, cause=cause, short=f"computed on {ranks} alone")
    text = f"the gradient on {ranks} agrees with the reference, and other ranks have none"
    cause = (
        "the parameter takes no part in the forward of the other ranks; their optimizers skip it, "
        "and its replicas drift apart"
    )
    return Pattern("on some ranks", text, cause=cause, short=f"a gradient on {ranks} alone")
