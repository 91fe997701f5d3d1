"""Defines `expect_rng(...)`, by which a test declares what it expects of random draws.

`RNG_CHECKS` names the default checks, which such an expectation can replace or switch off.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from pytest_trainsafe.core.usage import listing, shown
from pytest_trainsafe.errors import ArgumentError

#: The axes whose ranks can be compared. They are roles: each stands for all mesh axes that have it.
RNG_AXES = ("dp", "tp", "cp")

#: The rules that are applied by default, by the names of their findings.
RNG_CHECKS = (
    "rng:dp_same_dropout",
    "rng:tp_same_dropout",
    "rng:cp_same_dropout",
    "rng:tp_different_dropout",
    "rng:cp_different_dropout",
    "rng:recomputation",
    "rng:evaluation_dropout",
    "rng:evaluation_shift",
    "rng:initialisation",
    "rng:workers",
    "rng:shared_generator",
    "rng:unseen",
)


@dataclass(frozen=True, slots=True)
class Expectation:
    """One expectation; see `expect_rng`."""

    where: str
    same: tuple[str, ...]
    different: tuple[str, ...]
    ignore: tuple[str, ...]
    reason: str

    def concerns(self, place: str) -> bool:
        """Whether the expectation applies to draws at `place`: a module's path, or "file.py:12"."""
        return fnmatchcase(place, self.where)


def expect_rng(
    where: str = "*",
    *,
    same: str | Sequence[str] = (),
    different: str | Sequence[str] = (),
    ignore: str | Sequence[str] = (),
    reason: str = "",
) -> Expectation:
    """Expect random draws to be equal, or to differ, along axes; or switch off default checks.

    `where` is an `fnmatch` pattern. It matches the path of the module that draws
    ("layers.*.noise") or, for draws outside of the watched modules, the line ("train.py:41").
    All draws that match are checked, not only dropout. `same` and `different` name axes by their
    role, which stands for all mesh axes that have it: ranks along an axis in `same` must draw the
    same numbers, and ranks along an axis in `different` must draw different numbers. For these
    draws and axes, this replaces the default checks of dropout.

    `ignore` names default checks ("rng:evaluation_shift") that are switched off for these draws;
    this needs a `reason`. Raises ArgumentError for an unknown axis or check,
    an axis in both `same` and `different`, `ignore` without a reason, and a call that names
    nothing to expect or to ignore.
    """
    made = Expectation(where, _names(same), _names(different), _names(ignore), reason.strip())
    for axis in (*made.same, *made.different):
        if axis not in RNG_AXES:
            raise ArgumentError(
                f"expect_rng takes the axes {listing(RNG_AXES)}, not {shown(axis)}; give mesh axes "
                "with other names by their role"
            )
    for check in made.ignore:
        if check not in RNG_CHECKS:
            raise ArgumentError(
                f"expect_rng(ignore=...) takes some of {listing(RNG_CHECKS)}, not {shown(check)}"
            )
    if both := sorted({*made.same} & {*made.different}):
        raise ArgumentError(f"expect_rng has {both[0]!r} in same= and in different=; choose one")
    if not (made.same or made.different or made.ignore):
        raise ArgumentError(
            f"expect_rng({where!r}) has no expectation; pass same=, different= or ignore="
        )
    if made.ignore and not made.reason:
        raise ArgumentError(
            f"expect_rng(ignore={list(made.ignore)}) lacks a reason; pass reason=, which the "
            "report shows"
        )
    return made


def _names(given: str | Iterable[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)
