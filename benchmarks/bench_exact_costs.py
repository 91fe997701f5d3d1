"""Measures what a proof costs: CPU seconds by part, and memory.  Ranks are threads.

    points   a whole Point on exact numbers, against the same Point in float64
    deep     one step of GPT with 8 and with 32 layers at tp=8 with sp, clipping and AdamW
    world    64 ranks
    growth   how the parts grow with each axis and size

The parts are: decide (the program on real numbers, which takes the decisions), execute (the program
on exact numbers, once for each sample of random residues), align, and judge (all other time of the
controller).
CPU seconds of the program are those of the process of its ranks, from the first rank's begin to the
last one's end, and both sides are added.

    python benchmarks/bench_exact_costs.py --only deep world --rows rows.jsonl
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from _measure import cpu_seconds, finish, machine, show

from pytest_trainsafe.align import logical
from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.core.point import AxisValue, Point
from pytest_trainsafe.judges.alone import judge_alone
from pytest_trainsafe.judges.exact.judge import ProofJudge
from pytest_trainsafe.judges.joint import judge_case
from pytest_trainsafe.runs.session import Session
from pytest_trainsafe.sweep.case import Case
from pytest_trainsafe.sweep.program import resolve

Row = dict[str, Any]
Axes = Mapping[str, AxisValue]

BASE: dict[str, Any] = {
    "layers": 2,
    "hidden": 32,
    "heads": 8,
    "seq_len": 16,
    "vocabulary": 32,
    "batch_size": 1,
    "microbatches": 1,
    "steps": 1,
    "clip": 0.5,
}
DEEP: Axes = {"tp": 8, "sp": True}
WORLD: Axes = {"dp": 2, "tp": 8, "sp": True, "pp": 4}

#: Each size or axis that grows, its values, and the axes and arguments beside it.
GROWTH: tuple[tuple[str, tuple[int, ...], Axes, dict[str, Any]], ...] = (
    ("tp", (2, 4, 8), {"sp": True}, {}),
    ("dp", (2, 4, 8), {}, {"microbatches": 8}),
    ("pp", (2, 4, 8), {}, {"layers": 8, "microbatches": 8}),
    ("layers", (1, 2, 4, 8), {"tp": 2}, {}),
    ("microbatches", (1, 2, 4, 8), {"tp": 2}, {}),
    ("hidden", (16, 64, 256), {"tp": 2}, {}),
    ("heads", (2, 4, 8), {"tp": 2}, {}),
    ("seq_len", (8, 32, 128), {"tp": 2}, {}),
)
COLUMNS = ("decide", "execute", "align", "judge", "memory", "seeds", "verdict")


def main() -> None:
    asked = _arguments()
    facts = machine()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="trainsafe-exact-costs-") as temporary:
        folder = Path(temporary)
        settings = Settings(
            max_world_size=64, launcher="threads", device="cpu", timeout=3600.0, localize=0.0
        )
        session = Session(settings, folder)
        try:
            parts(session, folder, {}, {**BASE, "layers": 1})  # starts and warms the fork server
            for row in measured(session, folder, asked.only):
                rows.append(row)
                print(json.dumps(row), flush=True)
                with asked.rows.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
        finally:
            session.close()
    for table in ("deep", "world", "growth"):
        found = [row for row in rows if row["table"] == table]
        shown = [[row["what"], *(str(row[each]) for each in COLUMNS)] for row in found]
        show(table, ["", *COLUMNS], shown) if shown else None
    pairs = [row for row in rows if row["table"] == "points"]
    shown = [[row["what"], row["exact"], row["float64"], row["ratio"]] for row in pairs]
    show("points: CPU s", ["", "exact", "float64", "ratio"], shown) if shown else None
    finish("exact_costs", facts, {"rows": rows})


def measured(session: Session, folder: Path, only: list[str]) -> Iterator[Row]:
    """The rows of the tables `only`."""
    if "points" in only:
        for axes, given in (({"tp": 2}, {}), ({"tp": 2}, {"hidden": 128}), (DEEP, {})):
            yield point(session, axes, {**BASE, "steps": 2, **given})
    if "deep" in only:
        for layers in (8, 32):
            row = parts(session, folder, DEEP, {**BASE, "layers": layers})
            yield {"table": "deep", "what": f"{layers} layers", **row}
    if "world" in only:
        row = parts(session, folder, WORLD, {**BASE, "layers": 4, "microbatches": 4})
        yield {"table": "world", "what": str(Point.of(WORLD)), **row}
    if "growth" in only:
        for name, values, axes, given in GROWTH:
            for value in values:
                sizes = {**BASE, **given}
                at = dict(axes) | ({name: value} if name not in sizes else {})
                if name in sizes:
                    sizes[name] = value
                row = parts(session, folder, at, sizes)
                yield {"table": "growth", "what": f"{name}={value}", **row}


def point(session: Session, axes: Axes, given: Mapping[str, Any]) -> Row:
    """The CPU seconds of a Point from the launch to the verdict, at each rung; nothing is cached.

    The two rungs take turns, so that other load slows both.
    """
    spent: dict[str, float] = {"exact": 0.0, "float64": 0.0}
    program = resolve("pytest_trainsafe.reference_models.gpt:train")
    for turn in range(3):
        for rung in spent:
            # Another learning rate, so that no Run of another turn serves.
            arguments = program.complete({**given, "learning_rate": 0.001 * (turn + 1)})
            settings = session.settings._replace(dtypes=(rung,))
            case = Case(Point.of(axes), program, settings, arguments, arguments)
            candidate, reference = session.candidate(case), session.reference(case)
            before = cpu_seconds()
            verdict = judge_case(candidate, reference).verdict
            assert verdict == "pass", (rung, verdict)
            session.discard(candidate)
            # The first turn imports what is needed.
            spent[rung] += (cpu_seconds() - before) / 2 if turn else 0.0
    found = {rung: round(seconds, 2) for rung, seconds in spent.items()}
    sizes = " ".join(f"{name}={given[name]}" for name in ("layers", "hidden"))
    ratio = round(spent["exact"] / spent["float64"], 2)
    return {"table": "points", "what": f"{Point.of(axes)} {sizes}", **found, "ratio": ratio}


def parts(session: Session, folder: Path, axes: Axes, given: Mapping[str, Any]) -> Row:
    """The CPU seconds of the parts of a proof, and the largest process of ranks in MiB."""
    notes = folder / "notes"
    notes.unlink(missing_ok=True)
    program = resolve("exact_cost_program:train")
    arguments = program.complete({"module": "gpt", "notes": str(notes), "arguments": dict(given)})
    case = Case(Point.of(axes), program, session.settings, arguments, arguments)
    candidate, reference = session.candidate(case), session.reference(case)
    with aligning() as aligned:
        before = time.process_time()
        judgement = judge_alone(ProofJudge(), candidate, None, reference)
        controller = time.process_time() - before
    session.discard(candidate)
    certificate = judgement.certificate  # type: ignore[attr-defined]
    seeds = len(certificate.seeds) if certificate is not None else 1
    groups = list(runs(notes))
    seconds = {
        rung: sum(spent for each, spent, _ in groups if each == rung) for rung in ("real", "exact")
    }
    return {
        "decide": round(seconds["real"], 2),
        "execute": round(seconds["exact"] / seeds, 2),
        "align": round(aligned[0], 2),
        "judge": round(controller - aligned[0], 2),
        "memory": round(max(memory for *_, memory in groups)),
        "seeds": seeds,
        "verdict": judgement.verdict,
    }


def runs(notes: Path) -> Iterator[tuple[str, float, float]]:
    """The rung, CPU seconds and peak memory of each Run, which is one process."""
    groups: dict[tuple[str, int], list[list[float]]] = {}
    for line in notes.read_text().splitlines():
        rung, process, *measures = json.loads(line)
        groups.setdefault((rung, process), []).append(measures)
    for (rung, _), ranks in groups.items():
        before, after, memory = zip(*ranks, strict=True)
        yield rung, max(after) - min(before), max(memory)


@contextmanager
def aligning() -> Iterator[list[float]]:
    """Counts the CPU seconds in which parts of tensors are read and merged."""
    spent = [0.0]

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def count(*arguments: Any, **named: Any) -> Any:
            before = time.thread_time()
            try:
                return function(*arguments, **named)
            finally:
                spent[0] += time.thread_time() - before

        return count

    originals = {name: getattr(logical, name) for name in ("parts_of", "merge")}
    for name, each in originals.items():
        setattr(logical, name, counted(each))
    try:
        yield spent
    finally:
        for name, each in originals.items():
            setattr(logical, name, each)


def _arguments() -> argparse.Namespace:
    every = ["points", "deep", "world", "growth"]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", choices=every, default=every, help="These tables")
    parser.add_argument("--rows", type=Path, default=Path("exact_costs.jsonl"))
    return parser.parse_args()


if __name__ == "__main__":
    main()
