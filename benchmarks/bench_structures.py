"""Program fuzzing: random structures of `reference_models/mixed` at random Points.

Each structure is compared with its single-device reference in float64, where every logic bug shows.
All structures must pass without a bug. Then bugs are planted in the structures that can have them,
and must be found. Every run of the benchmark draws the same structures and Points.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from _measure import finish, machine, quick, show
from _rungs import case, session

from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.judges.joint import judge_case
from pytest_trainsafe.reference_models.bugs import find
from pytest_trainsafe.reference_models.mixed import has_experts
from pytest_trainsafe.runs.session import Session
from pytest_trainsafe.sweep.case import Case
from pytest_trainsafe.sweep.validity import invalid

SEED = 0
SETTINGS = Settings(localize=0.0, dtypes=("float64",))

STRUCTURE: dict[str, tuple[object, ...]] = {
    "layers": (1, 2, 3),
    "kv_heads": (1, 2, 4),
    "norm": ("rms", "layer"),
    "gated": (False, True),
    "bias": (False, True),
    "tied": (False, True),
    "mixtures": ("none", "none", "all", "second"),
    "frozen": ("nothing", "nothing", "embedding", "norms", "attention"),
    "unused": (False, True),
}
AXES: dict[str, tuple[int | bool, ...]] = {
    "dp": (1, 2),
    "tp": (1, 2),
    "cp": (1, 2),
    "ep": (1, 2),
    "sp": (False, True),
}

#: Bugs in blocks that every structure has, and one in mixtures of experts.
PLANTED = ("tp-embedding-mask", "sp-layernorm-grads", "moe-router-grads")


def main() -> None:
    count = 4 if quick(__doc__) else 40
    facts = machine()
    draws = random.Random(SEED)
    rows = []
    with session(SETTINGS) as opened:
        for structure, point in drawn(draws, count):
            rows.append(row(opened, structure, point, ""))
            for bug in PLANTED:
                if can_have(bug, structure, point):
                    rows.append(row(opened, structure, point, bug))
    figures = [
        (
            bug or "clean",
            len(own := [each for each in rows if each["bug"] == bug]),
            sum(each["verdict"] == "fail" for each in own),
            sum(each["verdict"] == "inconclusive" for each in own),
        )
        for bug in ("", *PLANTED)
    ]
    show("Random structures", ("planted", "programs", "fail", "inconclusive"), figures)
    finish("structures", facts, {"seed": SEED, "rows": rows})


def drawn(draws: random.Random, count: int) -> Iterator[tuple[dict[str, object], Point]]:
    """Yields `count` valid structures, each with a parallel Point of at most four ranks."""
    found = 0
    while found < count:
        structure = {name: draws.choice(values) for name, values in STRUCTURE.items()}
        axes = {name: draws.choice(values) for name, values in AXES.items()}
        # sp is a bool, and True equals 1.
        point = Point.of({n: size for n, size in axes.items() if size is True or size > 1})
        one = case("mixed", point, SETTINGS, structure)
        arguments = one.program.complete(structure)
        if point.world_size > 1 and not invalid(point, arguments, one.program.rules, 4):
            found += 1
            yield structure, point


def can_have(bug: str, structure: dict[str, object], point: Point) -> bool:
    """Whether the bug shows in this structure at this Point."""
    frozen = structure["frozen"]
    if not find(bug).triggers(point):
        return False
    if bug == "sp-layernorm-grads":
        return frozen != "norms"
    if bug == "moe-router-grads":
        return has_experts(structure)
    return True


def row(opened: Session, structure: dict[str, object], point: Point, bug: str) -> dict[str, Any]:
    """Judges one structure, with a bug or "" for none; returns the verdict and first finding."""
    whole: Case = case("mixed", point, SETTINGS, structure, {"bug": bug} if bug else {})
    candidate = opened.candidate(replace(whole))
    judgement = judge_case(candidate, opened.reference(whole))
    opened.discard(candidate)
    first = next(iter(judgement.findings), None)
    found = {
        "bug": bug,
        "point": str(point),
        "verdict": judgement.verdict,
        "first": str(first.about) if first is not None else "",
        "what": first.message if first is not None else "",
        **structure,
    }
    print(" | ".join(map(str, found.values())), file=sys.stderr, flush=True)
    return found


if __name__ == "__main__":
    main()
