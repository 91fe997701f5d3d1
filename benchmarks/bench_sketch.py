"""Measures what sketches cost compared with full recording, and how often they miss an error.

A sketch is a set of random projections that is recorded instead of a tensor. Three tables: the
time that recording adds to a step of the reference GPT on one device, for small and wider models;
the share of wrong tensors that sketches clear, by the size and the shape of the error; and the
number of tensors of clean Points that must be recorded again in full.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import programs
import torch
from _measure import finish, machine, median, quick, show

from pytest_trainsafe.align.sketched import Sketched
from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.core.rungs.table import rung_named
from pytest_trainsafe.judges.compare.tensors.screen import screen_tensor
from pytest_trainsafe.judges.joint import judge_case
from pytest_trainsafe.judges.joint_text import report_of
from pytest_trainsafe.launch import Task, TorchrunLauncher, raise_for_failure
from pytest_trainsafe.reference_models import gpt
from pytest_trainsafe.runs.session import Session
from pytest_trainsafe.sweep.case import Case
from pytest_trainsafe.sweep.program import resolve
from pytest_trainsafe.trace.tensors.sketch import Sketcher

#: The reference GPT at its default size, and one with longer steps.
SIZES: list[dict[str, int]] = [
    {"layers": 2, "hidden": 64, "seq_len": 32},
    {"layers": 4, "hidden": 256, "seq_len": 128, "batch_size": 4},
]

#: Wider models, measured in float32 with few repetitions, because a step takes seconds.
WIDER: list[dict[str, int]] = [
    {"layers": 2, "hidden": 512, "seq_len": 256, "batch_size": 4},
    {"layers": 1, "hidden": 1024, "seq_len": 256, "batch_size": 4},
    {"layers": 1, "hidden": 2048, "seq_len": 256, "batch_size": 4},
]

#: The ratios of a wrong tensor's true error to its allowance.
ERRORS = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0)

#: The shapes of the error in a tensor of 64 x 64 elements.
SPREADS: dict[str, Callable[[torch.Generator], torch.Tensor]] = {
    "everywhere": lambda g: _normal(g, 64, 64),
    "one row": lambda g: torch.eye(64, dtype=torch.float64)[:, :1] * _normal(g, 1, 64),
    "one column": lambda g: _normal(g, 64, 1) * torch.eye(64, dtype=torch.float64)[:1],
    "rank one": lambda g: _normal(g, 64, 1) * _normal(g, 1, 64),
    "two rows swapped": lambda g: _swapped(_normal(g, 1, 64)),
}


def main() -> None:
    small = quick(__doc__)
    facts = machine()
    costs = [cost(sizes, dtype, small) for sizes in SIZES for dtype in DTYPES]
    costs += [cost(sizes, "float32", small=True) for sizes in ([] if small else WIDER)]
    show_costs(costs)
    cleared = {name: shares(make, 200 if small else 5000) for name, make in SPREADS.items()}
    show_cleared(cleared)
    points = [Point.of(tp=2, cp=2, dtype=dtype) for dtype in ("float32", "bfloat16")]
    again = [suspects(point, seed) for point in points for seed in range(1 if small else 3)]
    show_suspects(again)
    finish("sketch", facts, {"recording": costs, "cleared": cleared, "clean": again})


DTYPES = ("float64", "float32", "bfloat16")


def cost(sizes: dict[str, int], dtype: str, small: bool) -> dict[str, Any]:
    """The time that recording adds to a step, relative to a bare step, and the bytes per step."""
    repetitions, steps = (2, 3) if small else (3, 4)
    with tempfile.TemporaryDirectory(prefix="trainsafe-steps-") as temporary:
        arguments = (temporary, repetitions, steps, sizes, dtype)
        task = Task.of(programs.step_seconds, *arguments, world_size=1)
        result = TorchrunLauncher().run(task, timeout=1200, workdir=Path(temporary))
        raise_for_failure(result)
        found = result.values[0]
    milliseconds = {what: 1000 * median(of["seconds"]) for what, of in found.items()}
    return {
        **sizes,
        "dtype": dtype,
        "bare_ms": milliseconds["bare"],
        **{
            f"{what}_added": (milliseconds[what] - milliseconds["bare"]) / milliseconds["bare"]
            for what in ("sketch", "full")
        },
        **{f"{what}_bytes": median(found[what]["bytes"]) for what in ("sketch", "full")},
    }


def shares(make: Callable[[torch.Generator], torch.Tensor], count: int) -> dict[float, float]:
    """The share of tensors that are cleared, by the ratio of true error to allowance.

    `make` draws an error. The noise that sets the allowance affects all elements.
    """
    generator = torch.manual_seed(0)
    sketcher = Sketcher({}, {})

    def sketched(tensor: torch.Tensor) -> Sketched:
        made = sketcher.sketch(tensor.contiguous(), ())
        assert made is not None
        return Sketched(made[0], made[1])

    cleared = dict.fromkeys(ERRORS, 0)
    for _ in range(count):
        # The signs of a sketch depend on the indices, so permuting indices varies the signs.
        rows, columns = (torch.randperm(64, generator=generator) for _ in range(2))
        error = make(generator)[rows][:, columns]
        reference = _normal(generator, 64, 64)
        responses = [1e-7 * _normal(generator, 64, 64) for _ in range(2)]
        most = max(float(response.norm()) for response in responses)
        wrong = sketched(error * (rung_named("float32").safety * most / float(error.norm())))
        right, others = sketched(reference), [sketched(r) for r in responses]
        for times in ERRORS:
            values = Sketched(right.values + times * wrong.values, right.shape)
            measured = [Sketched(right.values + o.values, right.shape) for o in others]
            found = screen_tensor(values, right, measured, "float32")
            cleared[times] += found.cleared
    return {times: number / count for times, number in cleared.items()}


def suspects(point: Point, seed: int) -> dict[str, Any]:
    """Judges a clean Point by sketches; returns how many tensors are recorded again in full."""
    settings = Settings(record="sketch", seed=seed)
    looked: list[int] = []
    with tempfile.TemporaryDirectory(prefix="trainsafe-sketch-") as temporary:
        session = Session(settings, Path(temporary))
        try:
            case = Case(point, resolve(gpt.train), settings)
            candidate = session.candidate(case)
            failure = report_of(judge_case(candidate, session.reference(case)))
            looked = [len(spec.keep) for spec in candidate.runs.specs if spec.keep]
        finally:
            session.close()
    return {"point": str(point), "seed": seed, "passes": not failure, "again": sum(looked)}


def _normal(generator: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def _swapped(row: torch.Tensor) -> torch.Tensor:
    return torch.cat([row, -row, torch.zeros(62, 64, dtype=torch.float64)])


def show_costs(costs: list[dict[str, Any]]) -> None:
    rows = [
        [
            f"{one['layers']} layers, hidden {one['hidden']}, {one['dtype']}",
            f"{one['bare_ms']:.1f}",
            *(f"{100 * one[f'{what}_added']:.0f} %" for what in ("sketch", "full")),
            *(f"{one[f'{what}_bytes'] / 2**20:.2f}" for what in ("sketch", "full")),
        ]
        for one in costs
    ]
    columns = ["", "bare ms", "sketch adds", "full adds", "sketch MiB", "full MiB"]
    show("A step on one device, and its trace", columns, rows)


def show_cleared(cleared: dict[str, dict[float, float]]) -> None:
    rows = [
        [name, *(f"{100 * share:.2f} %" for share in by_error.values())]
        for name, by_error in cleared.items()
    ]
    show("Cleared, by the true error over its allowance", ["", *map(str, ERRORS)], rows)


def show_suspects(again: list[dict[str, Any]]) -> None:
    rows = [[one["point"], one["seed"], one["passes"], one["again"]] for one in again]
    show("Clean Points", ["", "seed", "passes", "tensors looked at again"], rows)


if __name__ == "__main__":
    main()
