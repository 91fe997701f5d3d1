"""`python -m pytest_trainsafe.sweep.plan plan.json`: the shards of a plan, for a CI matrix.

Prints a JSON list of the shards' numbers, such as [1, 2, 3].
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path

from pytest_trainsafe.config.values import MAX_SHARDS
from pytest_trainsafe.errors import SettingError
from pytest_trainsafe.sweep.plan.document import Plan, read_plan

#: The number of shards if no earlier run has measured anything.
UNMEASURED = 4


def shard_count(plan: Plan, minutes: float, most: int) -> int:
    """The number of shards that take about `minutes` each, at most `most`; none is empty."""
    wanted = UNMEASURED
    if plan.estimated_seconds is not None:
        wanted = math.ceil(plan.estimated_seconds / 60 / minutes)
    return max(1, min(wanted, most, len(plan.points)))


def main(arguments: list[str] | None = None) -> int:
    """Prints the list and returns the exit status: 2 if the plan cannot be read, else 0."""
    parser = argparse.ArgumentParser(
        prog="python -m pytest_trainsafe.sweep.plan",
        description="The shards of a plan that pytest --trainsafe-plan json has written.",
    )
    parser.add_argument("plan", type=Path)
    parser.add_argument("--minutes", type=float, default=10, help="Minutes of a shard (default 10)")
    parser.add_argument("--most", type=int, default=16, help="The most shards (default 16)")
    given = parser.parse_args(arguments)
    if not (given.minutes > 0 and 1 <= given.most <= MAX_SHARDS):
        parser.error(f"--minutes takes a positive number, and --most 1 to {MAX_SHARDS}")
    try:
        plan = read_plan("plan", given.plan)
    except SettingError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    print(json.dumps(list(range(1, shard_count(plan, given.minutes, given.most) + 1))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
