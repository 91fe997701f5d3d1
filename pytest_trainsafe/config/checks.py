"""The names of the checks that can be inconclusive, which `accept` takes.  Fast to import."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable

from pytest_trainsafe import wings
from pytest_trainsafe.core.usage import listing, nearest, shown
from pytest_trainsafe.errors import UnknownCheckError

#: The end of the name of a check that is made for each kind of tensor.
_OF_KIND = ":KIND"


def is_accepted(check: str, accepted: Collection[str]) -> bool:
    """Whether a check is accepted; `coverage` accepts `coverage:KIND` for every kind."""
    return check in accepted or check.partition(":")[0] in accepted


#: The import paths of the project's judges.
_judges: tuple[str, ...] = ()


def set_judges(paths: tuple[str, ...]) -> None:
    """Sets the judges of the project, whose `checks` can be accepted too."""
    global _judges
    _judges = paths


def checks() -> dict[str, str]:
    """The checks that `accept` takes and what each means: those of all judges.

    The name of a check that is made for each kind of tensor ends in `:KIND`.
    """
    from pkgutil import resolve_name  # every start of pytest imports this module

    found: dict[str, str] = {}
    for mapping in wings.objects(wings.CHECKS):
        found |= mapping
    for path in _judges:
        # The registry of judges reports a path that leads to no class.
        with contextlib.suppress(ImportError, AttributeError, ValueError):
            found |= getattr(resolve_name(path), "checks", {})
    return found


def require_known(accept: Iterable[str], source: str = "accept") -> tuple[str, ...]:
    """Returns the names in `accept`; raises UnknownCheckError if one names no check.

    The message starts with `source`, which says where the names come from.
    """
    names = tuple(accept)
    if not names:
        return names
    every = checks()
    per_kind = [name.removesuffix(_OF_KIND) for name in every if name.endswith(_OF_KIND)]
    known = [name.removesuffix(_OF_KIND) for name in every]
    for name in names:
        if name in known:
            continue
        check, of_kind, kind = name.partition(":")
        if check not in known:
            raise UnknownCheckError(
                f"{source} takes some of {listing(known)}, not {shown(name)}{nearest(check, known)}"
            )
        if of_kind and check not in per_kind:
            raise UnknownCheckError(
                f"{source} takes {shown(check)}, not {shown(name)}; only these checks may end in a "
                f"colon and a kind of tensor: {listing(per_kind)}"
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
