"""Measures the seconds of the same work in a test like DeepSpeed's own tests, and in this plugin.

The work is three steps of the reference GPT in bfloat16 at stages 2 and 3, on two ranks
(`deepspeed_work.py`). It is measured in turns in four ways. "DeepSpeed's way" runs it in a pool of
processes, like DeepSpeed's class `DistributedTest` (`peer_deepspeed.py`). The second way runs the
same function in ranks that the warm launcher forks, with DeepSpeed preloaded. The other two are
whole Points: the candidate is trained and recorded in float32 and in bfloat16, and every tensor is
judged, once with a cached reference and once with a reference that is run first. `--write` writes
the table into docs/deepspeed.md.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import deepspeed_work
from _measure import ROOT, finish, machine, median, ratios, show
from _page import write_section
from bench_launch import TIMEOUT, in_turns
from bench_peers import apart, timed

from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.judges.joint import judge_case
from pytest_trainsafe.judges.joint_text import report_of
from pytest_trainsafe.launch import Launcher, Task, WarmLauncher, WarmServer, raise_for_failure
from pytest_trainsafe.reference_models import deepspeed_gpt
from pytest_trainsafe.runs.session import Session
from pytest_trainsafe.sweep.case import Case
from pytest_trainsafe.sweep.marker import read_marker
from pytest_trainsafe.sweep.product import cells

PAGE = ROOT / "docs" / "deepspeed.md"
STAGES = (2, 3)

#: The ways that are measured, and their names in tables.
WAYS = {
    "theirs": "DeepSpeed's way",
    "group": "the same in our ranks",
    "point": "a Point, reference cached",
    "alone": "a Point, reference made",
}


def main() -> None:
    arguments = _arguments()
    rounds = 2 if arguments.quick else 7
    facts = machine() | {"deepspeed": importlib.metadata.version("deepspeed")}
    with surroundings() as ways:
        # The first round is dropped: it starts servers and records the cached references.
        taken = in_turns(ways, rounds + 1)
    seconds = {name: each[1:] for name, each in taken.items()}
    figures = [
        {
            "stage": stage,
            **{f"{way}_seconds": median(seconds[f"{way} {stage}"]) for way in WAYS},
            **{
                f"{way}_over_theirs": median(
                    ratios(seconds[f"{way} {stage}"], seconds[f"theirs {stage}"])
                )
                for way in WAYS
            },
        }
        for stage in STAGES
    ]
    rows = table(figures)
    columns = ["", *(f"stage {stage} s" for stage in STAGES), *(f"/theirs {s}" for s in STAGES)]
    show(f"The same work of 2 ranks, medians of {rounds} rounds", columns, rows)
    if arguments.write:
        write_section(PAGE, "seconds", section(rows, facts, rounds))
    finish("deepspeed_peer", facts, {"rounds": rounds, "stages": figures})


@contextmanager
def surroundings() -> Iterator[dict[str, Callable[[], float]]]:
    """Yields, for each way and stage, a function that runs it once and returns its seconds.

    The servers and the session that they use are closed at the end.
    """
    with tempfile.TemporaryDirectory(prefix="trainsafe-peer-") as temporary:
        folder = Path(temporary)
        # A separate folder of leases, so that this run does not wait for other runs of this user.
        os.environ["XDG_RUNTIME_DIR"] = temporary
        server = WarmServer.start()
        session = Session(Settings(device="cpu", localize=0.0), folder)
        launcher = WarmLauncher(server.address, warn=sys.exit)
        with apart():
            theirs = importlib.import_module("peer_deepspeed").run
        seeds = count(1)
        ways: dict[str, Callable[[], float]] = {}
        for stage in STAGES:
            work = partial(deepspeed_work.test, stage)
            one = case(stage, session.settings)
            ways[f"theirs {stage}"] = partial(timed, partial(theirs, test=work), 2)
            ways[f"group {stage}"] = partial(group, launcher, stage, folder)
            ways[f"point {stage}"] = partial(judged, session, one)
            ways[f"alone {stage}"] = partial(judged_anew, session, one, seeds)
        try:
            yield ways
        finally:
            session.close()
            server.close()


def group(launcher: Launcher, stage: int, folder: Path) -> float:
    """The seconds of DeepSpeed's test in ranks that `launcher` starts."""
    began = time.perf_counter()
    task = Task.of(deepspeed_work.group, stage, world_size=deepspeed_work.RANKS)
    raise_for_failure(launcher.run(task, timeout=TIMEOUT, workdir=folder))
    return time.perf_counter() - began


def case(stage: int, settings: Settings) -> Case:
    """The Case of the Point that trains the same as DeepSpeed's test."""
    sizes = {"microbatches": deepspeed_work.MICROBATCHES, "steps": deepspeed_work.STEPS}
    axes = {"zero": stage, "dp": deepspeed_work.RANKS, "dtype": "bfloat16", **sizes}
    declared = read_marker([deepspeed_gpt.train], {axis: [value] for axis, value in axes.items()})
    (cell,) = cells(declared, settings, lambda *_: None)
    return cell.case


def judged(session: Session, one: Case) -> float:
    """The seconds of a Point to its verdict, which must be a pass."""
    began = time.perf_counter()
    candidate = session.candidate(one)
    text = report_of(judge_case(candidate, session.reference(one)))
    spent = time.perf_counter() - began
    session.discard(candidate)
    if text or session.notes:
        raise SystemExit(
            f"a clean Point did not pass, so nothing was measured:\n{text}{session.notes}"
        )
    return spent


def judged_anew(session: Session, one: Case, seeds: Iterator[int]) -> float:
    """The seconds of a Point with a new seed, whose reference is therefore not cached."""
    return judged(session, replace(one, settings=one.settings._replace(seed=next(seeds))))


def table(figures: list[dict[str, Any]]) -> list[list[str]]:
    """A row for each way: the seconds by stage, and their ratios to DeepSpeed's seconds."""
    return [
        [
            name,
            *(f"{figure[f'{way}_seconds']:.2f}" for figure in figures),
            *(f"{figure[f'{way}_over_theirs']:.2f}" for figure in figures),
        ]
        for way, name in WAYS.items()
    ]


def section(rows: list[list[str]], facts: dict[str, object], rounds: int) -> str:
    """The page's section."""
    heads = ["", *(f"stage {s}, s" for s in STAGES), *(f"stage {s}, of theirs" for s in STAGES)]
    lines = [
        f"Written by `python benchmarks/{Path(__file__).name} {' '.join(sys.argv[1:])}`:",
        f"medians of {rounds} rounds on {facts['cores']} cores, load {facts['load']} before them;",
        f"DeepSpeed {facts['deepspeed']}, torch {facts['torch']}.",
    ]
    if float(str(facts["load"])) > float(str(facts["cores"])):
        lines.append("\nThe machine was busy with other work.")
    cells = [f"| {' | '.join(row)} |" for row in (heads, ["---"] * len(heads), *rows)]
    return "\n".join([" ".join(lines).replace(" \n", "\n"), "", *cells])


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="Two rounds")
    parser.add_argument("--write", action="store_true", help=f"Write {PAGE.relative_to(ROOT)}")
    return parser.parse_args()


if __name__ == "__main__":
    main()
