"""The bugs that can be planted in the parallel models.  Real frameworks had them, or similar ones.

`gpt.train(..., bug=name)`, or the program that the entry names, plants one.  An entry names the
first wrong tensor, so that tests can check that a detector reports it.  There is one file per axis;
nothing here imports torch.

`BUGS` are those of TTrace, Table 1 (Jiang et al., "TTrace: Lightweight Error Checking and Diagnosis
for Distributed Training"), with their numbers there (`Bug.ttrace`).  `OF_DEEPSEEK` are bugs of
latent attention, shared experts, biased routers and the prediction of a further token.
"""

from __future__ import annotations

from pytest_trainsafe.reference_models.bugs import (
    cp,
    deepseek,
    dp,
    ep,
    fp8,
    pp,
    recompute,
    sp,
    tp,
    zero,
)
from pytest_trainsafe.reference_models.bugs.bug import Bug

__all__ = ["BUGS", "NAMES", "OF_DEEPSEEK", "Bug", "find"]

BUGS = tuple(
    sorted(
        (
            *tp.BUGS,
            *cp.BUGS,
            *sp.BUGS,
            *pp.BUGS,
            *dp.BUGS,
            *ep.BUGS,
            *zero.BUGS,
            *recompute.BUGS,
            *fp8.BUGS,
        ),
        key=lambda bug: bug.ttrace,
    )
)

OF_DEEPSEEK = deepseek.BUGS

NAMES = tuple(bug.name for bug in (*BUGS, *OF_DEEPSEEK))


def find(name: str) -> Bug:
    """Return the bug with this name; raise ValueError, listing the names, if there is none."""
    for bug in (*BUGS, *OF_DEEPSEEK):
        if bug.name == name:
            return bug
    raise ValueError(f"there is no bug {name!r}; choose one of {', '.join(NAMES)}")
