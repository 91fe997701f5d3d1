"""Observes a script, or learns and checks what it left: bench_traincheck.py runs this in processes.

    python observed_script.py observe WAY SCRIPT FOLDER [PACK]
    python observed_script.py learn FOLDER PACK
    python observed_script.py check FOLDER PACK

FOLDER receives a file of each rank; RANK is its number, as torchrun sets it.  The last line of
`learn` and `check` is JSON.  Seconds are CPU seconds, without the imports.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from _traincheck_sides import EVERY, WARM_UP

from pytest_trainsafe.judges.learn.check.offline import check
from pytest_trainsafe.judges.learn.check.verifier import Verifier
from pytest_trainsafe.judges.learn.events.events import Listener, Plain
from pytest_trainsafe.judges.learn.events.file import TableWriter, read_table
from pytest_trainsafe.judges.learn.inference.learn import learn
from pytest_trainsafe.judges.learn.instrument.observation import Observation
from pytest_trainsafe.judges.learn.instrument.steps import Sample, Steps
from pytest_trainsafe.judges.learn.packs.pack import Pack, pack_of, write_pack
from pytest_trainsafe.judges.learn.packs.read import read_pack
from pytest_trainsafe.judges.learn.registry import relations
from pytest_trainsafe.judges.learn.run import ObservedRun
from pytest_trainsafe.judges.learn.use.deploy import observation_of

#: The name of the program, and the number of invariants of selective checking.
PROGRAM, CHOSEN = "script", 100


def observe(way: str, script: str, folder: Path, pack: Path | None) -> None:
    """Run a script, observed in one of the ways of `bench_traincheck.OURS`."""
    rank = int(os.environ.get("RANK", "-1"))
    fixed: dict[str, Plain] = {"rank": max(rank, 0), "world_size": 1}
    if rank >= 0:
        fixed |= {"world_size": 2, "dp_rank": rank}
    apis: tuple[str, ...] | None = None
    variables: tuple[str, ...] | None = None
    contents: tuple[str, ...] | None = None
    chosen: list[Pack] = []
    rules = relations()
    if pack is not None:
        chosen = [few(read_pack(pack, rules))]
        needed = observation_of(chosen, rules)
        apis, variables = needed.apis, () if way == "calls" else needed.variables
        contents = needed.contents
    listeners: list[Listener] = []
    if way in ("full", "written"):
        writer = TableWriter(folder / f"{max(rank, 0)}.bin", max(rank, 0))
        listeners.append(writer)
    if way in ("checked", "sampled"):
        verifier = Verifier(chosen, rules, program=PROGRAM, rank=max(rank, 0))
        listeners.append(verifier)
    sample = Sample(EVERY, WARM_UP) if way == "sampled" else Sample()
    steps = Steps(sample, automatic=True)
    with Observation(apis, variables, listeners, steps, fixed, contents).active():
        runpy.run_path(script, run_name="__main__")
    if way in ("full", "written"):
        writer.close()
    if way in ("checked", "sampled"):
        report(watched=len(verifier.watches), violations=len(verifier.violations))


def few(pack: Pack) -> Pack:
    """A pack with `CHOSEN` of the invariants at most, spread over their order."""
    every = max(1, len(pack.invariants) // CHOSEN)
    return Pack(pack.name, pack.invariants[::every][:CHOSEN], pack.programs)


def run_in(folder: Path) -> ObservedRun:
    """The run whose ranks wrote the files of a folder."""
    files = sorted(folder.glob("*.bin"))
    tables = [read_table(file, rank) for rank, file in enumerate(files)]
    return ObservedRun(PROGRAM, tables, {"torch": str(torch.__version__)})


def learned(folder: Path, pack: Path) -> None:
    """Learn a pack from the files of a folder."""
    began = time.process_time()
    run = run_in(folder)
    found = pack_of(PROGRAM, learn([run]))
    write_pack(found, pack, relations())
    spent = time.process_time() - began
    report(seconds=spent, invariants=len(found.invariants), records=run.records)


def checked(folder: Path, pack: Path) -> None:
    """Check all invariants of a pack, whatever their confidence, on the files of a folder."""
    began = time.process_time()
    rules = relations()
    run, known = run_in(folder), read_pack(pack, rules)
    found = check(run, [known], rules, min_confidence=0.0)
    spent = time.process_time() - began
    idle = len(known.invariants) - len(found.triggered)
    report(seconds=spent, failed=len(found.broken), idle=idle, invariants=len(known.invariants))


def report(**figures: float) -> None:
    """Print figures as JSON."""
    print(f"REPORT {json.dumps(figures)}", flush=True)


def main(arguments: Sequence[str]) -> None:
    torch.set_num_threads(1)
    if arguments[0] == "observe":
        way, script, folder, *pack = arguments[1:]
        observe(way, script, Path(folder), Path(pack[0]) if pack else None)
        return
    of = {"learn": learned, "check": checked}[arguments[0]]
    of(Path(arguments[1]), Path(arguments[2]))


if __name__ == "__main__":
    main(sys.argv[1:])
