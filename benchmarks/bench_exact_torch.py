"""Proves programs that train by torch's own parallelism on exact numbers.

DistributedDataParallel, FSDP2, DTensor's tensor and sequence parallelism, the parallel loss, the
schedules of torch.distributed.pipelining, and torch.optim's optimizers on sharded parameters.
Prints a row for each: proved, refuted, or not covered and why.  The programs of `outside_programs`
are judged with their planted faults too.  A clean program that is refuted, and a fault that is
proved, are errors of the judge; faults of rounding alone are named as such.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import exact_torch_programs
import torch
from _measure import finish, machine, show
from bench_exact import SMALL, Row, judged_program

from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.reference_models import gpt
from pytest_trainsafe.runs.session import Session
from pytest_trainsafe.sweep.program import Program, resolve

sys.path.append(str(Path(__file__).parent / "outside_programs"))

WAYS = (
    *("ddp", "ddp, static graph", "ddp, views of buckets", "ddp, small buckets"),
    *("replicate", "fsdp", "fsdp, not resharded"),
)
OPTIMIZERS = sorted(
    name
    for name, each in vars(torch.optim).items()
    if inspect.isclass(each) and issubclass(each, torch.optim.Optimizer)
    if name not in ("Optimizer", "LBFGS", "SparseAdam")
)
PIPELINED = {**SMALL, "layers": 4, "microbatches": 4, "batch_size": 1}
#: Faults that only round: exact numbers are not rounded.
ROUNDING = frozenset({"bf16-reduce"})


@dataclass(frozen=True)
class Wanted:
    """One program to judge; `planted` is the name of the argument that plants a fault."""

    what: str
    program: Program
    point: Point
    given: Mapping[str, Any] = field(default_factory=dict)
    fault: str = ""
    planted: str = "bug"


def main() -> None:
    asked = _arguments()
    facts = machine()
    rows = []
    with tempfile.TemporaryDirectory(prefix="trainsafe-exact-torch-") as temporary:
        settings = Settings(localize=0.0, max_world_size=4, launcher=asked.launcher)
        session = Session(settings, Path(temporary))
        try:
            for each in wanted(asked.quick):
                if asked.only and not any(word in each.what for word in asked.only):
                    continue
                given = (each.what, each.point, each.given, each.fault, each.planted)
                rows.append(judged_program(session, each.program, *given))
                print(rows[-1], file=sys.stderr, flush=True)
        finally:
            session.close()
    columns = ["", "Point", "fault", "", "why", "s"]
    shown = [[r.program, r.point, r.bug, r.verdict, r.why[:90], f"{r.seconds:.1f}"] for r in rows]
    show("torch's own parallelism on exact numbers", columns, shown)
    counts = {
        what: dict(Counter(row.verdict for row in rows if bool(row.bug) == faulty))
        for what, faulty in (("clean", False), ("planted", True))
    }
    print("\n" + "\n".join(f"{what}: {count}" for what, count in counts.items()))
    finish("exact_torch", facts, counts | {"rows": [_plain(row) for row in rows]})
    sys.exit(any(map(_wrong, rows)))


def wanted(quick: bool) -> Iterator[Wanted]:
    """The programs to judge."""
    two = Point.of(dp=2)
    parallel = resolve(exact_torch_programs.data_parallel)
    for way in WAYS[:: 6 if quick else 1]:
        yield Wanted(way, parallel, two, {"way": way})
    yield Wanted("fsdp", parallel, two, {"way": "fsdp", "bug": "summed"}, "summed")
    tensor = resolve(exact_torch_programs.tensor_parallel)
    for sp in (False, True):
        for loss in (False, True):
            name = "DTensor, parallel loss" if loss else "DTensor"
            point = Point.of({"tp": 2, "sp": True} if sp else {"tp": 2})
            given = {"parts_of_loss": loss, "clip": 0.1 if sp else 0.0}
            yield Wanted(name, tensor, point, given)
    for schedule, stages in (
        *(("torch-1f1b", 1), ("torch-gpipe", 1), ("torch-zero-bubble", 1)),
        *(("torch-1f1b", 2), ("torch-zero-bubble", 2)),
    ):
        point = Point.of({"pp": 2, "vpp": stages} if stages > 1 else {"pp": 2})
        own: dict[str, Any] = {**PIPELINED, "schedule": schedule}
        yield Wanted(f"gpt, {schedule}", resolve(gpt.train), point, own)
    for name in [] if quick else OPTIMIZERS:
        yield Wanted(f"{name}, fsdp", parallel, two, {"way": "fsdp", "optimizer": name})
    yield from _outside(quick)


def _outside(quick: bool) -> Iterator[Wanted]:
    from outside_cases import CASES

    for case in CASES[: 4 if quick else None]:
        program = resolve(importlib.import_module(case.module).train)
        axes: Any = case.point
        point = Point.of(axes)
        yield Wanted(case.module, program, point)
        for fault in [] if quick else case.faults:
            yield Wanted(case.module, program, point, {"fault": fault}, fault, "fault")


def _wrong(row: Row) -> bool:
    if not row.bug:
        return row.verdict in ("refuted", "error")
    return row.verdict == "proved" and row.bug not in ROUNDING


def _plain(row: Row) -> list[object]:
    return [row.program, row.point, row.bug, row.verdict, row.why[:200], round(row.seconds, 1)]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="A few programs of each kind")
    parser.add_argument("--only", nargs="*", metavar="WORD", help="Programs whose name has a word")
    parser.add_argument("--launcher", default="auto", help="What starts the ranks")
    return parser.parse_args()


if __name__ == "__main__":
    main()
