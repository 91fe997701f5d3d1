"""The names of the checks that can be inconclusive, which `accept` takes.  Fast to import."""

from __future__ import annotations

import contextlib
import pkgutil
from collections.abc import Collection, Iterable

from pytest_trainsafe.core.usage import listing, nearest, shown
from pytest_trainsafe.errors import UnknownCheckError

#: The names of all checks that have inconclusive findings.
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
    "deterministic",
    "sensitive",
    "zeros",
    "measured",
    "narrowed",
    "diverged",
    "sketched",
    "reference",
    "reference-finite",
    "rng:dp_same_dropout",
    "rng:expected",
    "rng:unseen",
    "learn:nothing",
    "relation:effect",
    "resume:lr_schedule",
    "resume:nondeterministic",
    "resume:nothing",
    "resume:rng",
    "resume:scaler",
)


#: The checks made for each kind of tensor: `coverage:param_grad` is the check of one kind.
PER_KIND = ("coverage", "sensitive")


def is_accepted(check: str, accepted: Collection[str]) -> bool:
    """Whether a check is accepted; `coverage` accepts `coverage:KIND` for every kind."""
    return check in accepted or check.partition(":")[0] in accepted


#: The import paths of the project's judges.
_judges: tuple[str, ...] = ()


def set_judges(paths: tuple[str, ...]) -> None:
    """Sets the judges of the project, whose `checks` can be accepted too."""
    global _judges
    _judges = paths


def _of_judges() -> tuple[str, ...]:
    """The names of the checks that the project's judges declare."""
    found: list[str] = []
    for path in _judges:
        # The registry of judges reports a path that leads to no class.
        with contextlib.suppress(ImportError, AttributeError, ValueError):
            found += getattr(pkgutil.resolve_name(path), "checks", ())
    return tuple(found)


def require_known(accept: Iterable[str], source: str = "accept") -> tuple[str, ...]:
    """Returns the names in `accept`; raises UnknownCheckError if one names no check.

    The message starts with `source`, which says where the names come from.
    """
    names = tuple(accept)
    for name in names:
        if name in CHECKS or name in (others := _of_judges()):
            continue
        check, of_kind, kind = name.partition(":")
        if check not in CHECKS:
            raise UnknownCheckError(
                f"{source} takes some of {listing((*CHECKS, *others))}, not {shown(name)}"
                f"{nearest(check, (*CHECKS, *others))}"
            )
        if of_kind and check not in PER_KIND:
            raise UnknownCheckError(
                f"{source} takes {shown(check)}, not {shown(name)}; only these checks may end in a "
                f"colon and a kind of tensor: {listing(PER_KIND)}"
            )
        if of_kind:
            _require_kind(check, kind, source)
    return names


def _require_kind(check: str, kind: str, source: str) -> None:
    from typing import get_args

    from pytest_trainsafe.core.tensor_id import Kind  # slow to import, and rarely needed

    kinds = get_args(Kind)
    if kind not in kinds:
        raise UnknownCheckError(
            f"{source} takes {shown(f'{check}:KIND')}, where KIND is one of {listing(kinds)}, not "
            f"{shown(f'{check}:{kind}')}{nearest(kind, kinds)}"
        )
