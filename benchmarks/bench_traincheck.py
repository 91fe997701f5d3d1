"""Measures this package beside TrainCheck 0.2.0 on the same three scripts and numbers of steps.

The scripts are a small CNN, a small transformer (LM) and an MLP on two ranks (DDP).  For each tool:
the CPU time of a step bare, with full collection and with what 100 of the tool's own invariants
need; the trace; inference; and a check of all learned invariants on the trace that they were
learned from.  TrainCheck is in an environment of its own:

    python -m venv PEER
    PEER/bin/pip install -c constraints.txt traincheck==0.2.0
    python benchmarks/bench_traincheck.py --peer PEER

All times are CPU times of processes with one compute thread.  The time of a step is the mean of a
run without its first two steps; of our side, medians of ROUNDS runs are shown.  The seconds of
inference and of checks include reading and writing, but not the imports: for the peer, the time of
`--help` is subtracted.  Peaks are those of the largest process.

Same content means the same script and steps.  Still the records are not the same things: TrainCheck
records nearly all functions of torch, also private ones, from the import of torch on, so most of
its records are made before the first step; we record those that matter for training, and the state
of optimizers, schedulers and gradients.  So seconds for 1000 records are shown too.  Twice the
steps are not twice the records.  The invariants are of different kinds as well, and 100 of ours
need other records than 100 of the peer's.

TrainCheck runs with its defaults, and tracks the variable `model` by proxy objects; with these, its
DDP run ends in a segmentation fault, so DDP uses its tensor subclasses.  Its selective collection
records every step here, while its default is every tenth step after ten; the ways "sampled" of both
tools record every tenth step after two.  The peer only collects while the script runs; our ways
"checked" and "sampled" also judge each event.  "calls" and "observed" write and
judge nothing: they show what "checked" is made of.  Invariants that compare ranks are judged after
the run by both.  On a busy machine with two cores, all of this takes a quarter of an hour, and
`--quick` half of that.  Without `--peer` nothing is measured.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from _measure import finish, machine, median, show
from _traincheck_scripts import SCRIPTS
from _traincheck_sides import Child, Figures, Ours, Theirs, kib_of

#: The version of TrainCheck that is measured.
PEER = "0.2.0"

#: The steps of each program's trace, of `--quick`, and the least steps of a run without a trace
#: that is learned from. The peer's inference takes quadratic time, so the traces are short.
STEPS = {"CNN": 16, "LM": 8, "DDP": 6}
QUICK_STEPS, TIMED_STEPS = 6, 32

#: Runs of each of our ways, and of our inference and check. The peer's run once each: they take
#: minutes, of which most is spent before the first step.
ROUNDS = 3

#: CPU seconds after which a process of the peer is killed.
LIMIT, QUICK_LIMIT = 240, 60

#: Our ways to observe: everything written to a file; then of what 100 invariants need the calls
#: alone, calls and state, both written to a file, both judged by the Verifier, and both judged in
#: every tenth step.
OURS = ("full", "calls", "observed", "written", "checked", "sampled")

INSTALL = (
    f"TrainCheck {PEER} is needed in an environment of its own: python -m venv PEER && "
    f"PEER/bin/pip install -c constraints.txt traincheck=={PEER}; then --peer PEER"
)


def measured(name: str, folder: Path, steps: int, peer: Path, limit: int, rounds: int) -> Figures:
    """The figures of both tools for one program, in a folder that is empty."""
    (folder / f"{name.lower()}.py").write_text(SCRIPTS[name])
    ours, theirs = Ours(name, folder), Theirs(name, folder, peer, limit)
    runs: dict[str, list[Child]] = {}
    kib: dict[str, float] = {}

    def run(tool: str, way: str, many: int, target: str) -> None:
        side: Ours | Theirs = ours if tool == "ours" else theirs
        ran = side.bare(many) if way == "bare" else side.observed(way, many, target)
        ran.step_ms()
        runs.setdefault(f"{tool} {way}", []).append(ran)
        if way in ("full", "written", "selective"):
            kib[f"{tool} {way}"] = kib_of(folder / target)

    inference: Figures = {}
    for part, many in {"half": steps // 2, "whole": steps}.items():
        for tool in ("ours", "theirs"):
            run(tool, "full", many, f"{tool}_{part}")
        several = [ours.inferred(f"ours_{part}", "ours.pack") for _ in range(rounds)]
        inference[f"ours {part}"] = middle(several)
        inference[f"theirs {part}"] = theirs.inferred(f"theirs_{part}", "theirs.json")
    learned = not inference["theirs whole"].get("killed")
    checks = {"ours": middle([ours.checked("ours_whole") for _ in range(rounds)])}
    if (folder / "theirs.json").exists():
        theirs.choose()
        # Without an inference of the whole trace, the invariants are those of its half.
        checks["theirs"] = theirs.checked("theirs_whole" if learned else "theirs_half")
    sizes = dict(kib)
    # The shorter runs were for the growth alone.
    runs = {key: each[1:] for key, each in runs.items()}
    timed = max(steps, TIMED_STEPS)
    run("theirs", "bare", timed, "")
    if "theirs" in checks:
        run("theirs", "selective", timed, "theirs_run")
        run("theirs", "sampled", timed, "theirs_run")
    for again in range(rounds):
        for way in ("bare", *OURS[1:]):
            run("ours", way, timed, "ours_run")
        if again:
            run("ours", "full", steps, "ours_again")
    verdict = [each.report() for way in ("checked", "sampled") for each in runs[f"ours {way}"]]
    return {
        "steps": steps,
        "timed_steps": timed,
        "ways": {
            key: {
                "step_ms": median([each.step_ms() for each in found]),
                "run_seconds": median([each.seconds for each in found]),
                "peak_mib": median([each.peak_mib for each in found]),
                "kib": sizes.get(key, kib.get(key)),
            }
            for key, found in runs.items()
        },
        "watched": verdict[0]["watched"],
        "live_violations": max(each["violations"] for each in verdict),
        "inference": {key: plain(each) for key, each in inference.items()},
        "checks": {key: plain(each) for key, each in checks.items()},
    }


def middle(found: Sequence[Figures]) -> Figures:
    """The median of each figure."""
    return {key: median([each[key] for each in found]) for key in found[0]}


def plain(found: Figures) -> Figures:
    """Figures without the output of the tool."""
    return {key: value for key, value in found.items() if key != "said"}


def show_program(name: str, figures: Figures) -> Figures:
    """Show the tables of a program; returns its ratios."""
    ways = figures["ways"]
    rows = []
    for key, each in ways.items():
        bare = ways[f"{key.split()[0]} bare"]["step_ms"]
        times, kib = f"{each['step_ms'] / bare:.2f}", each["kib"]
        costs = f"{each['step_ms']:.2f}", times, f"{each['step_ms'] - bare:.2f}"
        sizes = f"{each['peak_mib']:.0f}", "" if kib is None else f"{kib:.0f}"
        rows.append([key, *costs, f"{each['run_seconds']:.1f}", *sizes])
    columns = ["", "ms", "times", "added ms", "run s", "peak MiB", "trace KiB"]
    title = f"{name}: the CPU time of a step, {figures['timed_steps']} steps (full and traces: "
    show(f"{title}{figures['steps']})", columns, sorted(rows))
    rows = [inference_row(key, each) for key, each in figures["inference"].items()]
    columns = ["", "records", "invariants", "s", "s with imports", "s/1000 records", "peak MiB"]
    show(f"{name}: inference from full traces", columns, rows)
    rows = [check_row(key, each) for key, each in figures["checks"].items()]
    columns = ["", "s", "s with imports", "failed", "no example", "peak MiB"]
    show(f"{name}: check of all learned invariants on the trace they are from", columns, rows)
    return ratios_of(figures)


def inference_row(key: str, each: Figures) -> list[str]:
    if each.get("killed"):
        return [
            key,
            "",
            "",
            f"more than {each['all_seconds']:.0f}",
            "",
            "",
            f"{each['peak_mib']:.0f}",
        ]
    thousand = 1e3 * each["seconds"] / each["records"]
    seconds = f"{each['seconds']:.2f}", f"{each['all_seconds']:.2f}", f"{thousand:.4f}"
    counts = f"{each['records']:.0f}", f"{each['invariants']:.0f}"
    return [key, *counts, *seconds, f"{each['peak_mib']:.0f}"]


def check_row(key: str, each: Figures) -> list[str]:
    if each.get("killed"):
        return [key, f"more than {each['all_seconds']:.0f}", "", "", "", f"{each['peak_mib']:.0f}"]
    seconds = f"{each['seconds']:.2f}", f"{each['all_seconds']:.2f}"
    return [
        key,
        *seconds,
        f"{each['failed']:.0f}",
        f"{each['idle']:.0f}",
        f"{each['peak_mib']:.0f}",
    ]


def ratios_of(figures: Figures) -> Figures:
    """What the targets are about.  If the peer was killed, its ratios are lower bounds."""
    ways, inference = figures["ways"], figures["inference"]
    bare = ways["ours bare"]["step_ms"]
    added = {
        key: each["step_ms"] - ways[f"{key.split()[0]} bare"]["step_ms"]
        for key, each in ways.items()
    }
    own, other = inference["ours whole"], inference["theirs whole"]
    found = {
        "inference, theirs/ours": other["seconds"] / own["seconds"],
        "inference with imports, theirs/ours": other["all_seconds"] / own["all_seconds"],
        "full step, theirs/ours": ways["theirs full"]["step_ms"] / ways["ours full"]["step_ms"],
        "added by full, theirs/ours": added["theirs full"] / added["ours full"],
        "checked step, times bare": ways["ours checked"]["step_ms"] / bare,
        "checked, % of a 50 ms step": 100 * added["ours checked"] / 50,
        "sampled step, times bare": ways["ours sampled"]["step_ms"] / bare,
        "sampled, % of a 50 ms step": 100 * added["ours sampled"] / 50,
    }
    if not other.get("killed"):
        found["inference per record, theirs/ours"] = (
            other["seconds"] / other["records"] * own["records"] / own["seconds"]
        )
    for tool in ("ours", "theirs"):
        half, whole = inference[f"{tool} half"], inference[f"{tool} whole"]
        found[f"inference of twice the steps, {tool}, times"] = whole["seconds"] / half["seconds"]
    for way in ("selective", "sampled"):
        if f"theirs {way}" in ways:
            found[f"{way} step, theirs, times bare"] = (
                ways[f"theirs {way}"]["step_ms"] / ways["theirs bare"]["step_ms"]
            )
    return found


def main() -> None:
    asked = arguments()
    if asked.peer is None:
        print(f"Nothing is measured. {INSTALL}")
        return
    peer = peer_of(asked.peer)
    facts = machine() | {"traincheck": PEER}
    limit, rounds = (QUICK_LIMIT, 1) if asked.quick else (LIMIT, ROUNDS)
    figures: Figures = {}
    for name, steps in STEPS.items():
        chosen = asked.steps or (QUICK_STEPS if asked.quick else steps)
        with tempfile.TemporaryDirectory(prefix="trainsafe-traincheck-") as folder:
            figures[name] = measured(name, Path(folder), chosen, peer, limit, rounds)
        figures[name]["ratios"] = show_program(name, figures[name])
    names = {key: None for each in figures.values() for key in each["ratios"]}
    rows = [
        [
            key,
            *(
                f"{each['ratios'][key]:.2f}" if key in each["ratios"] else "-"
                for each in figures.values()
            ),
        ]
        for key in names
    ]
    show("Ratios", ["", *figures], rows)
    for name, each in figures.items():
        if each["inference"]["theirs whole"].get("killed"):
            print(f"  {name}: the peer's inference was killed, so it takes more than is shown.")
        watched, broken = each["watched"], each["live_violations"]
        print(f"  {name}: {watched} invariants were judged live, {broken} violations.")
    finish("traincheck", facts, {"rounds": rounds, "programs": figures})


def peer_of(given: Path) -> Path:
    """The folder of the peer's environment.  SystemExit if it has no TrainCheck of this version."""
    peer = given.absolute()
    if not (peer / "bin" / "traincheck-infer").exists():
        raise SystemExit(f"{given} has no traincheck-infer. {INSTALL}")
    asking = "import importlib.metadata as m; print(m.version('traincheck'))"
    said = subprocess.run(
        [peer / "bin" / "python", "-c", asking], capture_output=True, text=True, check=False
    )
    if said.stdout.strip() != PEER:
        raise SystemExit(f"{given} has TrainCheck {said.stdout.strip() or '(none)'}. {INSTALL}")
    return peer


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", type=Path, help=f"An environment that has TrainCheck {PEER}")
    parser.add_argument("--quick", action="store_true", help="One round, few steps")
    parser.add_argument("--steps", type=int, help="The steps of every program's trace")
    asked = parser.parse_args()
    if asked.steps is not None and asked.steps < 2 * 3:
        parser.error("--steps: at least 6, because inference is measured at half of them as well")
    return asked


if __name__ == "__main__":
    main()
