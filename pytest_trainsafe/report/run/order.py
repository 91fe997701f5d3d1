"""The order of the tests in reports: that of their collection, also with pytest-xdist.

Workers report their tests as they end, which is another order in each run.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pytest_trainsafe.report.run.outcome import Outcome

_COLLECTED: pytest.StashKey[Sequence[str]] = pytest.StashKey()


def keep_order(config: pytest.Config, collected: Sequence[str]) -> None:
    """Keeps the node ids that a worker of pytest-xdist has collected; all workers collect alike."""
    config.stash.setdefault(_COLLECTED, collected)


def in_order(config: pytest.Config, found: Sequence[Outcome]) -> list[Outcome]:
    """The Outcomes in the order of their tests' collection; unchanged if there are no workers."""
    collected = config.stash.get(_COLLECTED, None) or ()
    numbers = {nodeid: number for number, nodeid in enumerate(collected)}
    return sorted(found, key=lambda outcome: numbers.get(outcome.nodeid, len(numbers)))
