"""Defines `expect_rng(...)`, by which a test declares what it expects of random draws.

`RNG_CHECKS` names the default checks, which such an expectation can replace or switch off.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from pytest_trainsafe.core.usage import listing, shown
from pytest_trainsafe.errors import ArgumentError, ArgumentTypeError

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
    ("layers.*.noise") or, for draws outside of the watched modules, the line ("train.py:41"). For
    draws of NumPy's generators, whose lines are not known, it matches the line that makes the
    generator.

    `same` and `different` name axes by their role, which stands for all mesh axes that have it:
    ranks along an axis in `same` must draw the same numbers, and ranks along an axis in `different`
    must draw different numbers. This applies to all draws that match, not only dropout, in all
    phases but recomputations; to draws of the initialisation only if no later ones match. For
    these draws and axes, it replaces the default checks of dropout.

    `ignore` names default checks ("rng:evaluation_shift") that are switched off for these draws;
    this needs a `reason`. For "rng:workers", `where` matches the line that makes the loader's
    iterator. Raises ArgumentError for an unknown axis or check, an axis in both `same` and
    `different`, `ignore` without a reason, "rng:unseen" with another `where` than "*", and a call
    that names nothing to expect or to ignore.
    """
    _require_text("where", where, 'a pattern of modules or lines, such as "layers.*.noise"')
    _require_text("reason", reason, "a sentence")
    made = Expectation(
        where,
        _names("same", same, RNG_AXES),
        _names("different", different, RNG_AXES),
        _names("ignore", ignore, RNG_CHECKS),
        reason.strip(),
    )
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
    if "rng:unseen" in made.ignore and where != "*":
        raise ArgumentError(
            f"expect_rng({shown(where)}, ignore=...) cannot ignore rng:unseen at some places only, "
            'because draws that the ledger does not show have no place; ignore it with where="*"'
        )
    if both := sorted({*made.same} & {*made.different}):
        raise ArgumentError(f"expect_rng has {both[0]!r} in same= and in different=; choose one")
    if not (made.same or made.different or made.ignore):
        raise ArgumentError(
            f"expect_rng({where!r}) has no expectation; pass same=, different= or ignore="
        )
    if made.ignore and not made.reason:
        raise ArgumentError(
            f"expect_rng(ignore={list(made.ignore)}) lacks a reason; pass reason=, a sentence that "
            "says why the check does not apply"
        )
    return made


def _require_text(argument: str, given: object, allowed: str) -> None:
    if not isinstance(given, str):
        raise ArgumentTypeError(
            f"expect_rng was given {shown(given)} as {argument}; {argument} must be text: {allowed}"
        )


def _names(argument: str, given: object, known: Sequence[str]) -> tuple[str, ...]:
    names = (given,) if isinstance(given, str) else given
    if not isinstance(names, (list, tuple, set, frozenset)) or not all(
        isinstance(name, str) for name in names
    ):
        raise ArgumentTypeError(
            f"expect_rng was given {shown(given)} as {argument}; {argument} must be one of "
            f"{listing(known)}, or a list of some of them"
        )
    return tuple(names)
