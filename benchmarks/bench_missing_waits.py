"""Do missing waits and buffers reused in flight show, and are correct programs silent?

Judges ten programs (`missing_waits.py`), each with its bug planted and without it.  A bug counts as
named if a finding has its check and both of its lines: where the collective was issued, and where
its buffer was used.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import missing_waits
from _measure import finish, machine, quick, show

from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.judges.alone import judge_alone
from pytest_trainsafe.judges.contract import Judgement
from pytest_trainsafe.judges.replay.schedules.judge import ScheduleJudge
from pytest_trainsafe.runs.session import Session
from pytest_trainsafe.sweep.case import Case
from pytest_trainsafe.sweep.program import resolve


def main() -> None:
    small = quick(__doc__)
    cases = list(missing_waits.CASES)[: 3 if small else None]
    facts = machine()
    figures: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory(prefix="trainsafe-waits-") as folder:
        session = Session(Settings(launcher="threads", device="cpu"), Path(folder))
        try:
            for case in cases:
                for world in (2, 4):
                    figures.append(judged(session, case, world))
        finally:
            session.close()
    columns = ["program", "ranks", "planted", "named", "correct", "seconds of a pair of Runs"]
    names = ("case", "ranks", "planted", "named", "correct", "seconds")
    show("Missing waits", columns, [[str(row[name]) for name in names] for row in figures])
    planted, silent = (sum(bool(row[k]) for row in figures) for k in ("named", "silent"))
    print(
        f"{planted} of {len(figures)} planted bugs named, {silent} of {len(figures)} twins silent"
    )
    finish("missing_waits", facts, {"cases": figures, "named": planted, "silent": silent})


def judged(session: Session, case: str, world: int) -> dict[str, object]:
    """A program with its bug and without it."""
    began = time.perf_counter()
    right = judge(session, case, world, planted=False)
    seconds = time.perf_counter() - began
    wrong = judge(session, case, world, planted=True)
    return {
        "case": case,
        "ranks": world,
        "planted": [finding.check for finding in wrong.findings],
        "named": is_named(wrong, case),
        "correct": right.verdict,
        "silent": right.verdict == "pass",
        "seconds": round(seconds, 2),
    }


def judge(session: Session, case: str, world: int, *, planted: bool) -> Judgement:
    """The judgement of one program."""
    arguments = {"case": case, "planted": planted}
    point = Point.of(dp=world)
    made = Case(point, resolve(missing_waits.train), session.settings, arguments, arguments)
    traces = session.candidate(made)
    try:
        return judge_alone(ScheduleJudge(), traces)
    finally:
        session.discard(traces)


def is_named(judgement: Judgement, case: str) -> bool:
    """Whether the first finding has the check and both lines of the planted bug."""
    for finding in judgement.findings[:1]:
        facts = dict(finding.evidence)
        issued, used = (int(str(facts[k]).rpartition(":")[2]) for k in ("issued", "used"))
        return (
            finding.check == missing_waits.EXPECTED[case]
            and issued in missing_waits.lines(case, "issued")
            and used in missing_waits.lines(case, "used")
        )
    return False


if __name__ == "__main__":
    main()
