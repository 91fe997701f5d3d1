"""Divides the tests of a plan into shards.

Every machine of a CI run computes its own shard.  So the result depends on the plan alone, not on
the machine, the Python version, the order of collection or hash randomisation.
"""

from __future__ import annotations

from collections.abc import Mapping

#: The weight of one rank, in milliseconds, where no earlier run has measured anything.
_PER_RANK = 1_000


def weights(seconds: Mapping[str, float | None], ranks: Mapping[str, int]) -> dict[str, int]:
    """The weight of each test in milliseconds; integers, so that sums are exact.

    A test without seconds has the mean of the others.  If none has seconds, the weight is the
    number of ranks.
    """
    known = {test: round(value * 1000) for test, value in seconds.items() if value is not None}
    if not known:
        return {test: _PER_RANK * ranks[test] for test in seconds}
    mean = sum(known.values()) // len(known)
    return {test: known.get(test, mean) for test in seconds}


def shards(weight: Mapping[str, int], count: int) -> list[list[str]]:
    """Divides tests into `count` shards of about the same weight.

    The heaviest test comes first, and each goes to the lightest shard.  No shard is heavier than
    4/3 of the best possible division (Graham, Bounds on multiprocessing timing anomalies, 1969).
    """
    made: list[list[str]] = [[] for _ in range(count)]
    load = [0] * count
    for test in sorted(weight, key=lambda test: (-weight[test], test)):
        lightest = min(range(count), key=lambda shard: (load[shard], len(made[shard]), shard))
        made[lightest].append(test)
        load[lightest] += weight[test]
    return made
