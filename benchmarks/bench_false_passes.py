"""Judges ideas for false passes: faults that an allowance, an exclusion or a cache might hide.

Each idea is judged with its fault and as its clean twin.  A fault must fail, or, where no recorded
tensor shows it, be inconclusive or stand in the report as not compared.  A pass without a word is a
false pass.  Ideas about cached references are stories of several runs of pytest.

    python benchmarks/bench_false_passes.py
    python benchmarks/bench_false_passes.py --only quantised unseeded
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from _judged import Row
from _measure import finish, machine, show
from _trials import Trial, judged

FOLDER = Path(__file__).with_name("false_passes")
sys.path.insert(0, str(FOLDER))

import hunt_cache  # noqa: E402
from hunt_cases import IDEAS, Idea  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="PREFIX", help="Ideas with these prefixes")
    parser.add_argument("--clean", choices=("both", "only", "none"), default="both")
    asked = parser.parse_args()
    facts = machine()
    ideas = [each for each in IDEAS if not asked.only or each.name.startswith(tuple(asked.only))]
    rows = []
    wanted = {"both": (True, False), "only": (True,), "none": (False,)}[asked.clean]
    told = [each for each in ideas if each.mechanism != "cache"]
    trials = [(idea, _trial(idea, clean)) for idea in told for clean in wanted]
    for (idea, _), row in zip(trials, judged([trial for _, trial in trials]), strict=True):
        rows.append(row | {"idea": idea.name, "right": _right(idea, row)})
        _show(rows[-1])
    for idea in ideas:
        for clean in wanted if idea.mechanism == "cache" else ():
            rows.append(_story(idea, "" if clean else idea.fault))
            _show(rows[-1])
    show("Ideas for false passes", ["ideas", *ENDS, "clean", "right"], _table(rows))
    wrong = [f"{row['idea']} {row['fault'] or 'clean'}" for row in rows if not row["right"]]
    finish("false_passes", facts, {"judged": len(rows), "wrong": wrong})
    sys.exit(bool(wrong))


#: How a fault may end: "silent" is a pass without a word.
ENDS = ("fails", "inconclusive", "said", "silent")


def _table(rows: list[Row]) -> list[list[object]]:
    """For each group of ideas, how its faults end, and how many of its clean twins are right."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(str(row["idea"]).partition("-")[0], []).append(row)
    table: list[list[object]] = []
    for name, own in groups.items():
        ends = [_end(row) for row in own if row["fault"]]
        clean = [row for row in own if not row["fault"]]
        counts = [ends.count(end) for end in ENDS]
        table.append([name, *counts, len(clean), sum(bool(row["right"]) for row in clean)])
    return table


def _end(row: Row) -> str:
    if row["verdict"] == "fail" or row.get("story"):
        return "fails" if row["right"] else "silent"
    if row["verdict"] == "inconclusive":
        return "inconclusive"
    return "said" if row["verdict"] == "pass" and row["right"] else "silent"


def _trial(idea: Idea, clean: bool) -> Trial:
    return Trial(
        idea.name,
        f"{idea.module}:train",
        idea.point,
        "" if clean else idea.fault,
        idea.args,
        tuple(idea.settings.get("dtypes", ())),
        tuple(idea.settings.get("accept", ())),
        tuple(idea.settings.get("loosen", ())),
        idea.settings.get("settings", {}),
    )


def _right(idea: Idea, row: Row) -> bool:
    said = row["verdict"] == "inconclusive" or any(
        "not compared" in note for note in row.get("notes", [])
    )
    if row["fault"]:
        return row["verdict"] == "fail" or (idea.expect == "fail-or-said" and said)
    if idea.clean == "said":
        return bool(said)
    return row["verdict"] == "pass" or (idea.clean == "pass-or-said" and said)


def _story(idea: Idea, fault: str) -> Row:
    """Runs the steps of a story; it is right if each run of pytest ends as the step expects."""
    row: Row = {"idea": idea.name, "fault": fault, "story": True, "right": True}
    row["verdict"] = "as expected"
    with tempfile.TemporaryDirectory(prefix="trainsafe-story-") as temporary:
        folder = Path(temporary)
        for step in hunt_cache.steps(folder, **idea.args, fault=fault):
            if isinstance(step, hunt_cache.Change):
                step.act()
                continue
            ended, output = _run(folder, step)
            said = ended == "inconclusive" or "not compared" in output or "cache" in output
            if ended == step.expect or (
                step.expect == "fail-or-said" and (ended == "fail" or said)
            ):
                continue
            return row | {"verdict": f"{ended} instead of {step.expect}", "right": False}
    return row


def _run(folder: Path, run: hunt_cache.Run) -> tuple[str, str]:
    """How the single test of a story ends, and what pytest prints."""
    command = [sys.executable, "-m", "pytest", "-q", "-rA", *run.arguments]
    done = subprocess.run(
        command,
        cwd=folder,
        env=os.environ | run.environ,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    if done.returncode == 0:
        return "pass", done.stdout
    return "inconclusive" if ": inconclusive" in done.stdout else "fail", done.stdout


def _show(row: Row) -> None:
    right = "right" if row["right"] else "WRONG"
    what = row["fault"] or "clean"
    print(f"{right} {row['idea']} {what}: {row['verdict']} {row.get('worst', '')}", flush=True)
    for text in [*row.get("report", "").splitlines()[:3], *row.get("notes", [])[:2]]:
        if not row["right"]:
            print(f"    {text}", flush=True)


if __name__ == "__main__":
    main()
