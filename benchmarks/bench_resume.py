"""Training programs of different kinds: deterministic, and resumed from arbitrary checkpoints.

Each program is trained twice from the start, in processes in which hash seeds and uninitialised
memory differ, and must give the same bits (`assert_deterministic`).  Then it is interrupted after
each of several steps, drawn at random, and must go on in new processes with the bits of the
training that was never interrupted (`assert_resumable`).
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from _measure import finish, machine, show

from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.core.finding import Finding
from pytest_trainsafe.judges.replay.determinism.judge import judge_determinism
from pytest_trainsafe.judges.replay.resume.arguments import resumption_of
from pytest_trainsafe.judges.replay.resume.judge import judge_resumable
from pytest_trainsafe.launch import GroupFailure
from pytest_trainsafe.reference_models.resumable import KINDS, STEPS, Kind
from pytest_trainsafe.runs.session import Session
from pytest_trainsafe.sweep.marker import read_marker
from pytest_trainsafe.sweep.product import cells


def main() -> None:
    arguments = _arguments()
    facts = machine()
    rows, figures = [], []
    for number, kind in enumerate(KINDS):
        if arguments.kinds and kind.name not in arguments.kinds:
            continue
        points = sorted(random.Random(number).sample(range(1, STEPS), 2 if arguments.quick else 4))
        figure = judged(kind, points)
        figures.append(figure)
        rows.append(_row(kind, figure))
        print(*rows[-1], sep=" | ", file=sys.stderr, flush=True)
    columns = [
        "program",
        "Point",
        "tensors",
        "twice from the start",
        "interrupted after",
        "resumed",
    ]
    show(f"Trainings of {STEPS} steps", columns, rows)
    failed = [each["kind"] for each in figures if each["findings"]]
    print(f"\n{len(rows)} programs, {len(failed)} that differ")
    finish("resume", facts, {"steps": STEPS, "kinds": figures})
    sys.exit(bool(failed))


def judged(kind: Kind, points: Sequence[int]) -> dict[str, Any]:
    """Whether a program is deterministic, and resumes after each of `points` steps."""
    began = time.perf_counter()
    findings: dict[str, list[str]] = {}
    tensors = 0
    with tempfile.TemporaryDirectory(prefix="trainsafe-resume-") as temporary:
        session = Session(Settings(dtypes=("float64",)), Path(temporary))
        try:
            case = next(
                cell.case
                for cell in cells(
                    read_marker(
                        [kind.program],
                        {**kind.point, "args": {**kind.arguments, "steps": STEPS}},
                    ),
                    session.settings,
                    lambda *_: None,
                )
            )
            traces = session.candidate(case)
            whole = traces.at("float64")
            tensors = sum(len(rank.tensors) for rank in whole.ranks)
            functions: dict[str, Any] = {}
            if kind.by_functions:
                from pytest_trainsafe.reference_models.resumable import files

                functions = {"save": files.save, "load": files.load}
            try:
                findings["start"] = _texts(judge_determinism(traces, repeats=2).findings)
                for at_step in points:
                    asked = resumption_of(traces, at_step, STEPS, **functions)
                    findings[str(at_step)] = _texts(judge_resumable(traces, asked).findings)
            except GroupFailure as failure:
                findings["error"] = [str(failure)]
        finally:
            session.close()
    return {
        "kind": kind.name,
        "point": dict(kind.point),
        "tensors": tensors,
        "checkpoints": list(points),
        "findings": {where: found for where, found in findings.items() if found},
        "seconds": round(time.perf_counter() - began, 1),
    }


def _texts(findings: Sequence[Finding]) -> list[str]:
    return [f"{finding.check}: {finding.verdict}" for finding in findings]


def _row(kind: Kind, figure: dict[str, Any]) -> list[object]:
    found = figure["findings"]
    point = " ".join(f"{axis}={value}" for axis, value in kind.point.items()) or "one device"
    whole = "error" if "error" in found else "differs" if "start" in found else "equal"
    resumed = [at for at in figure["checkpoints"] if str(at) in found]
    again = "error" if "error" in found else f"differs after {resumed}" if resumed else "equal"
    interrupted = ", ".join(str(at) for at in figure["checkpoints"])
    return [kind.name, point, figure["tensors"], whole, interrupted, again]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="Two checkpoints instead of four")
    parser.add_argument("--kinds", nargs="*", choices=[kind.name for kind in KINDS])
    return parser.parse_args()


if __name__ == "__main__":
    main()
