"""Real bugs that can be planted in the parallel models, each by its real mechanism.

`gpt.train(..., bug=name)` plants one, or `train` of another program if the bug's entry names one.
An entry also names the first wrong tensor, so that tests can check that a detector reports it.
There is one file per axis; nothing here imports torch.

The numbers `ttrace` are those of TTrace, Table 1 (Jiang et al., "TTrace: Lightweight Error Checking
and Diagnosis for Distributed Training").
"""

from __future__ import annotations

from pytest_trainsafe.reference_models.bugs import cp, dp, ep, fp8, pp, recompute, sp, tp, zero
from pytest_trainsafe.reference_models.bugs.bug import Bug

__all__ = ["BUGS", "NAMES", "Bug", "find"]

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

NAMES = tuple(bug.name for bug in BUGS)


def find(name: str) -> Bug:
    """The bug of this name. Raises ValueError, which lists the names, if there is none."""
    for bug in BUGS:
        if bug.name == name:
            return bug
    raise ValueError(f"there is no bug {name!r} to plant; choose one of {', '.join(NAMES)}")
