"""Measures the time to find the code at fault, relative to the time of the Point that failed.

The reference GPT with a bug in its embedding, 2 and 8 layers deep, is judged at tp=2 and at tp=2
cp=2 in float64, the rung that fails. The first failure of a session also runs the rewritten
reference; later failures with the same arguments reuse it.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from _measure import finish, machine, median, quick, show

from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.judges.compare.localize.budget import Budget, replace_budget
from pytest_trainsafe.judges.joint import judge_case
from pytest_trainsafe.judges.joint_text import report_of
from pytest_trainsafe.reference_models import gpt
from pytest_trainsafe.runs.session import Session
from pytest_trainsafe.sweep.case import Case
from pytest_trainsafe.sweep.point_summary import PointSummary
from pytest_trainsafe.sweep.program import resolve

BUG = "tp-embedding-mask"
FAULT = "the forward of embedding.word_embeddings"


def main() -> None:
    small = quick(__doc__)
    facts = machine()
    points = [Point.of(tp=2), Point.of(tp=2, cp=2)]
    depths, repetitions = ((2,), 1) if small else ((2, 8), 3)
    figures = []
    for layers in depths:
        measured = [one_session(layers, points) for _ in range(repetitions)]
        for number, point in enumerate(points):
            runs = [session[number] for session in measured]
            figures.append(
                {
                    "layers": layers,
                    "point": str(point),
                    "point_s": median([own for own, _ in runs]),
                    "localize_s": median([localizing for _, localizing in runs]),
                    "ratio": median([localizing / own for own, localizing in runs]),
                }
            )
    rows = [
        [
            f"{one['layers']} layers, {one['point']}",
            *(f"{one[key]:.2f}" for key in ("point_s", "localize_s", "ratio")),
        ]
        for one in figures
    ]
    columns = ["", "Point s", "localise s", "ratio"]
    show(f"A failed Point in float64, medians of {repetitions}", columns, rows)
    finish("localize", facts, {"repetitions": repetitions, "points": figures})


def one_session(layers: int, points: list[Point]) -> list[tuple[float, float]]:
    """For each Point, the wall seconds to its verdict, and those of the search for the fault."""
    found = []
    with tempfile.TemporaryDirectory(prefix="trainsafe-localize-") as temporary:
        session = Session(Settings(dtypes=("float64",), localize=600), Path(temporary))
        try:
            for point in points:
                found.append(one_point(session, layers, point))
        finally:
            session.close()
    return found


def one_point(session: Session, layers: int, point: Point) -> tuple[float, float]:
    arguments = {"layers": layers}
    settings = session.settings
    case = Case(point, resolve(gpt.train), settings, arguments, {**arguments, "bug": BUG})
    published: list[PointSummary] = []
    reference, candidate = session.reference(case), session.candidate(case)
    candidate.runs.publish = published.append
    began = time.perf_counter()
    report = report_of(judge_case(candidate, reference))
    wall = time.perf_counter() - began
    session.discard(candidate)
    # Or the next Point's failure would only refer to this one.
    replace_budget(session.scheduler, Budget())
    if FAULT not in " ".join(report.split()):
        raise SystemExit(f"the fault was not found, so nothing was measured:\n{report}")
    localizing = published[0]["seconds"]["localize"]
    return wall - localizing, localizing


if __name__ == "__main__":
    main()
