"""Observes the programs of the exam, and keeps their runs.

A program runs as a project's test would run it: `observe()` in one process, without a word on what
to observe.  Programs of two ranks run in one pair of processes, which share a process group; each
rank's steps are counted by its first optimizer, as `observe()` does.
"""

from __future__ import annotations

import importlib
import sys
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from _kept_runs import KeptRuns
from _measure import ROOT
from _observed_runs import VERSIONS
from torch.multiprocessing.spawn import spawn

from pytest_trainsafe.judges.learn.events.file import TableWriter, read_table
from pytest_trainsafe.judges.learn.instrument.observation import Observation, observe
from pytest_trainsafe.judges.learn.instrument.steps import Sample, Steps
from pytest_trainsafe.judges.learn.run import ObservedRun

FOLDER = ROOT / "benchmarks" / "learn_exam"
sys.path.insert(0, str(FOLDER))

#: The programs whose ranks are of another axis than dp.
_AXES = {
    "exam2_routed_experts": "ep",
    "exam2_split_mlp": "tp",
    "exam3_column_row": "tp",
    "exam3_staged_translator": "pp",
    "exam4_halved_layers": "tp",
    "exam4_long_letters": "cp",
    "exam4_turned_shards": "tp",
    "exam4_two_stage_writer": "pp",
    "exam4_wide_columns": "tp",
    "exam6_column_plan": "tp",
    "exam6_staged_forecast": "pp",
    "exam6_twin_halves": "tp",
    "exam7_echo_phrases": "pp",
    "exam7_folded_scrolls": "cp",
    "exam7_harbour_experts": "ep",
    "exam7_kiln_readings": "tp",
    "exam8_bell_melodies": "pp",
    "exam8_healthy_split_vocabulary": "tp",
    "exam8_long_ledgers": "cp",
    "exam8_weir_flow": "tp",
    "exam_distributed_sequence_norm": "tp",
    "exam_distributed_router_drift": "tp",
    "exam_healthy_distributed_tensor_parallel": "tp",
}


@dataclass(frozen=True)
class Call:
    """A run of a program of the exam: its module, number of ranks, and sorted arguments."""

    module: str
    world: int
    arguments: tuple[tuple[str, int | bool], ...] = ()

    @property
    def axis(self) -> str:
        """The axis of its ranks."""
        return _AXES.get(self.module, "dp")

    @property
    def setting(self) -> str:
        """Its configuration, as a pack lists it: seed and size, but not the variant."""
        given = {"seed": 0, **dict(self.arguments)}
        return ", ".join(f"{name} {given[name]}" for name in sorted(given) if name != "healthy")


def call(module: str, world: int, **arguments: int | bool) -> Call:
    """A Call with these arguments."""
    return Call(module, world, tuple(sorted(arguments.items())))


def observed(kept: KeptRuns, calls: Sequence[Call]) -> Mapping[Call, ObservedRun]:
    """The runs of these calls, each of which is made at most once."""
    found: dict[Call, ObservedRun] = {}
    missing = []
    for each in dict.fromkeys(calls):
        run = kept.read(_key(each), _file(each), each.module)
        if run is None:
            missing.append(each)
        else:
            found[each] = run
    for each in missing:
        if each.world == 1:
            found[each] = kept.keep(_key(each), _file(each), _alone(each))
    together = [each for each in missing if each.world == 2]
    for each, run in zip(together, _in_ranks(together), strict=True):
        found[each] = kept.keep(_key(each), _file(each), run)
    return {
        each: ObservedRun(run.program, run.tables, run.versions, each.setting)
        for each, run in found.items()
    }


def _key(each: Call) -> Sequence[object]:
    return "exam", each.module, each.world, each.arguments


def _file(each: Call) -> Path:
    return FOLDER / f"{each.module}.py"


def _train(each: Call) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's warnings on the mistakes themselves
        importlib.import_module(each.module).train(**dict(each.arguments))


def _alone(each: Call) -> ObservedRun:
    importlib.import_module(each.module)
    with observe() as observation:
        _train(each)
    return ObservedRun(each.module, [observation.table], VERSIONS)


def _in_ranks(calls: Sequence[Call]) -> list[ObservedRun]:
    if not calls:
        return []
    with tempfile.TemporaryDirectory() as folder:
        spawn(_rank, (list(calls), folder), nprocs=2)
        return [
            ObservedRun(
                each.module,
                [read_table(Path(folder) / f"{at}.{rank}.bin", rank) for rank in range(2)],
                VERSIONS,
            )
            for at, each in enumerate(calls)
        ]


def _rank(rank: int, calls: Sequence[Call], folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    for at, each in enumerate(calls):
        importlib.import_module(each.module)
        writer = TableWriter(Path(folder) / f"{at}.{rank}.bin", rank)
        fixed = {"rank": rank, "world_size": 2, f"{each.axis}_rank": rank}
        steps = Steps(Sample(), automatic=True)
        observation = Observation(None, None, (writer,), steps, fixed)
        with observation.active():
            _train(each)
        assert writer.close() is not None, f"{each.module}: a table is larger than a file may be"
    dist.destroy_process_group()
