"""The names of the checks that can be inconclusive: what `accept` takes.  Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Iterable

from pytest_trainsafe.sweep.errors import SweepError, listing, nearest, shown

#: Every `check` of an inconclusive finding.
CHECKS = (
    "compared",
    "gradients-compared",
    "coverage",
    "gradients",
    "moved",
    "dp-inputs",
    "tp-inputs",
    "in-effect",
    "skipped-step",
    "dropout",
    "sensitive",
    "zeros",
    "measured",
    "narrowed",
    "diverged",
    "sketched",
    "reference",
    "reference-finite",
)


def require_known(accept: Iterable[str], source: str = "accept") -> tuple[str, ...]:
    """The names, each of which a check has: accepting another would accept nothing.

    ValueError (a SweepError) says who gave the name (`source`), and lists those there are.
    """
    names = tuple(accept)
    for name in names:
        if name not in CHECKS:
            raise SweepError(
                f"{source} takes some of {listing(CHECKS)}, not {shown(name)}"
                f"{nearest(name, CHECKS)}"
            )
    return names
