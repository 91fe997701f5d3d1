"""The names of the checks that can be inconclusive: what `accept` takes.  Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Iterable

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
    "dropout",
    "sensitive",
    "measured",
    "sketched",
    "reference",
    "reference-finite",
)


def require_known(accept: Iterable[str]) -> None:
    """Raise ValueError for a name that no check has: accepting it would accept nothing."""
    for name in accept:
        if name not in CHECKS:
            raise ValueError(f"accept names no check {name!r}; the checks are {', '.join(CHECKS)}")
