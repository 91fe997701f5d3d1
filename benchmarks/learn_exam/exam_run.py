"""Runs programs of the exam, in this process or in two ranks, and prints what they computed.

`exam_run.py variants NAME...` runs the healthy twin and the mistake of each named case, and
`exam_run.py own NAME...` the twins with other seeds and sizes; without names, those of all cases.
`exam_run.py others` runs the programs that have no faulty variant.  `--set` takes another set.
Each line of the output is the JSON of one `Ran`.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

sys.path.insert(0, str(Path(__file__).parent))

from exam_cases import Case, Program
from exam_sets import SETS


@dataclass(frozen=True)
class Call:
    """One run of the function `train` of a module, with its arguments."""

    module: str
    world: int
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Ran:
    """What each rank returned for a call."""

    call: Call
    ranks: list[dict[str, list[float]]]


def run(calls: list[Call]) -> list[Ran]:
    """Runs `calls`; those of two ranks share one pair of processes."""
    alone = {number: [_train(call)] for number, call in enumerate(calls) if call.world == 1}
    together = {number: call for number, call in enumerate(calls) if call.world == 2}
    both = dict(zip(together, _in_two_ranks(list(together.values())), strict=True))
    return [Ran(call, (alone | both)[number]) for number, call in enumerate(calls)]


def both_variants(cases: Sequence[Case]) -> list[Call]:
    """The calls of the healthy twin and of the bug, in this order, for each case."""
    return [
        Call(case.module, case.world, {"healthy": healthy})
        for case in cases
        for healthy in (True, False)
    ]


def own_healthy(cases: Sequence[Case]) -> list[Call]:
    """The calls of the cases' healthy twins with other seeds and sizes."""
    return [
        Call(case.module, case.world, {"healthy": True} | dict(arguments))
        for case in cases
        for arguments in case.own_healthy
    ]


def other_healthy(programs: Sequence[Program]) -> list[Call]:
    """A call of each of these programs, which have no faulty variant."""
    return [Call(program.module, program.world, {}) for program in programs]


def _train(call: Call) -> dict[str, list[float]]:
    found = importlib.import_module(call.module).train(**call.arguments)
    return cast("dict[str, list[float]]", found)


def _in_two_ranks(calls: list[Call]) -> list[list[dict[str, list[float]]]]:
    if not calls:
        return []
    with tempfile.TemporaryDirectory() as folder:
        spawn(_rank, (calls, folder), nprocs=2)
        texts = [(Path(folder) / str(rank)).read_text() for rank in range(2)]
    return [list(pair) for pair in zip(*map(json.loads, texts), strict=True)]


def _rank(rank: int, calls: list[Call], folder: str) -> None:
    torch.set_num_threads(1)
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    found = [_train(call) for call in calls]
    (Path(folder) / str(rank)).write_text(json.dumps(found))
    dist.destroy_process_group()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("what", choices=["variants", "own", "others"])
    options.add_argument("names", nargs="*", help="names of cases; all if none is given")
    options.add_argument("--set", type=int, choices=SETS, default=1)
    given = options.parse_args()
    every, healthy = SETS[given.set]
    cases = [case for case in every if not given.names or case.name in given.names]
    torch.set_num_threads(1)
    if given.what == "others":
        calls = other_healthy(healthy)
    else:
        calls = both_variants(cases) if given.what == "variants" else own_healthy(cases)
    for ran in run(calls):
        print(json.dumps(asdict(ran)))


if __name__ == "__main__":
    main()
