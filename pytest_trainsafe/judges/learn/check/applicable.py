"""Lists the invariants that a check did not judge, with the reasons, for the report."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_trainsafe.judges.learn.invariant import Invariant
from pytest_trainsafe.judges.learn.packs.pack import Pack
from pytest_trainsafe.judges.learn.relation import Relation
from pytest_trainsafe.judges.learn.watch import Watch
from pytest_trainsafe.sweep.point_summary import plural

#: What observed tables call the `__next__` of a DataLoader's iterators.
_NEXT = "torch.utils.data.DataLoader.__next__"


@dataclass(frozen=True, slots=True)
class NotChecked:
    """Invariants of which no example was judged, by reason.

    `lacking`: the invariant names an API that does not exist here, because its library is not
    installed, or because the installed release lacks it; each pair also has the name of the API.
    `untriggered`: the precondition was never met.  `outside`: the precondition was met only in
    contexts in which the pack was not learned.  `unsure`: the confidence is too low.  `ranks`: the
    invariant compares ranks, but only one rank was observed.
    """

    lacking: tuple[tuple[Invariant, str], ...]
    untriggered: tuple[Invariant, ...]
    outside: tuple[Invariant, ...]
    unsure: tuple[Invariant, ...]
    ranks: tuple[Invariant, ...]

    def sentences(self) -> list[str]:
        """A sentence for the report on each API that is lacking, and on each other reason.

        An id says nothing to a reader who cannot mend the reason, so only numbers are given.
        """
        found = [
            f"not checked: {each.id}, because "
            + (
                f"the installed library has no {api}"
                if _is_installed(api.partition(".")[0])
                else f"{api.partition('.')[0]} is not installed"
            )
            for each, api in self.lacking
        ]
        for what, why in (
            (self.untriggered, "never applied"),
            (self.outside, "applied only in contexts in which the packs were not learned"),
            (self.unsure, "have too little evidence for this program and seed"),
            (self.ranks, "compare ranks, while only one rank was observed"),
        ):
            if what:
                found.append(f"not checked: {plural(len(what), 'invariant')} that {why}")
        return found


def not_checked(
    packs: Sequence[Pack], watches: Sequence[Watch], relations: Mapping[str, Relation], ranks: int
) -> NotChecked:
    """The invariants in `packs` of which no example was judged, by reason.

    `watches` has the judges of the invariants, and `ranks` is the number of observed ranks.
    """
    watched = {watch.claim for watch in watches}
    judged = {watch.claim for watch in watches if watch.triggered}
    outside = {watch.claim for watch in watches if watch.outside} - judged
    several = {watch.claim for watch in watches if relations[watch.claim.relation].several}
    every = {each.claim: each for pack in packs for each in pack.invariants}
    lacking, untriggered, away, unsure, between = [], [], [], [], []
    for claim in sorted(every, key=lambda claim: claim.order):
        invariant = every[claim]
        api = next((name for name in _apis(invariant) if not exists(name)), None)
        if claim in judged:
            continue
        if api is not None:
            lacking.append((invariant, api))
        elif claim not in watched:
            unsure.append(invariant)
        elif ranks == 1 and claim in several:
            between.append(invariant)
        elif claim in outside:
            away.append(invariant)
        else:
            untriggered.append(invariant)
    return NotChecked(
        tuple(lacking), tuple(untriggered), tuple(away), tuple(unsure), tuple(between)
    )


def exists(api: str) -> bool:
    """Whether an API exists; True if that cannot be known without an import.

    Only modules that are already imported are searched: the name comes from a file, and nothing is
    to be imported because of it.  A library that is not installed has no APIs.
    """
    if api == _NEXT:
        return True
    parts = api.split(".")
    if not _is_installed(parts[0]):
        return False
    for size in range(len(parts), 0, -1):
        found: object = sys.modules.get(".".join(parts[:size]))
        if found is None:
            continue
        for part in parts[size:]:
            if part == "*":
                return True
            try:
                found = inspect.getattr_static(found, part)
            except AttributeError:
                return _may_have(found, part)
        return True
    return True


def _is_installed(library: str) -> bool:
    """Whether a top-level module is imported, or can be found; finding it imports nothing."""
    if library in sys.modules:
        return True
    try:
        return importlib.util.find_spec(library) is not None
    except (ImportError, ValueError):
        return False


def _may_have(found: object, name: str) -> bool:
    """Whether an object may have an attribute that a static search did not find."""
    if inspect.ismodule(found):
        if "__getattr__" in vars(found):
            return True
        try:
            # A submodule that was not imported; its parent was, so nothing is imported here.
            return importlib.util.find_spec(f"{found.__name__}.{name}") is not None
        except (ImportError, ValueError):
            return False
    return not inspect.isclass(found)


def _apis(invariant: Invariant) -> list[str]:
    return [invariant.claim.text(name) for name in ("api", "inner") if invariant.claim.text(name)]
