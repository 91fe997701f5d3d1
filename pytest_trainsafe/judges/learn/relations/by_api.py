"""Pairs claims about an API with the calls of this API."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping

from pytest_trainsafe.judges.learn.columns.frame import CallGroup
from pytest_trainsafe.judges.learn.invariant import Hypothesis


def by_api(
    claims: Collection[Hypothesis], groups: Mapping[str, CallGroup]
) -> Iterator[tuple[CallGroup, Hypothesis]]:
    """Yields each claim with the calls of the API that it names, sorted by API.

    `groups` has the calls of each API, by its name.  A claim on another API is left out.
    """
    wanted: dict[str, list[Hypothesis]] = defaultdict(list)
    for claim in claims:
        wanted[claim.text("api")].append(claim)
    for api in sorted(wanted.keys() & groups.keys()):
        for claim in wanted[api]:
            yield groups[api], claim
