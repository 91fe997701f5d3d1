"""Claims about the calls of an API, with the calls that each is about."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping

from pytest_trainsafe.judge.learn.columns.frame import CallGroup
from pytest_trainsafe.judge.learn.invariant import Hypothesis


def by_api(
    claims: Collection[Hypothesis], groups: Mapping[str, CallGroup]
) -> Iterator[tuple[CallGroup, Hypothesis]]:
    """Each claim whose `api` was called with the calls of this API, sorted by API."""
    wanted: dict[str, list[Hypothesis]] = defaultdict(list)
    for claim in claims:
        wanted[claim.text("api")].append(claim)
    for api in sorted(wanted.keys() & groups.keys()):
        for claim in wanted[api]:
            yield groups[api], claim
