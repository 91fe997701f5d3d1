"""Synthetic traces of a training that clips its gradients by their norm, for tests of clipping.

The optimizer's moments follow the gradients, as Adam's do in its first step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from pytest_trainsafe.core.point import Point
from pytest_trainsafe.core.rungs.table import rung_named
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.trace.schema import NoteEvent
from tests.support.compare.traces import SINGLE, Edit, Record, healthy, training, write

#: The largest norm that clipping allows; the norm of every gradient here is larger.
LIMIT = 1.0

NORM = TensorId(0, None, "grad_norm", "", "grad_norm")


def clipped(dtype: str, epsilon: float, seed: int, limit: float = LIMIT) -> list[Record]:
    """One step's logical tensors; its main gradients are clipped to `limit`, or not if it is 0."""
    records = training(dtype, epsilon, seed, steps=1)
    gradients = {r.id.path: r.tensor for r in records if r.id.kind == "main_grad"}
    norm = torch.stack([each.square().sum() for each in gradients.values()]).sum().sqrt()
    factor = limit / norm if limit else torch.ones(())
    found = []
    for record in records:
        if record.id.kind == "main_grad":
            record = dataclasses.replace(record, tensor=record.tensor * factor)
        elif record.id.kind == "optimizer_state":
            path = record.id.path.removesuffix(".exp_avg")
            gradient = gradients[path] * factor
            record = dataclasses.replace(record, tensor=0.1 * gradient)
            second = dataclasses.replace(
                record,
                id=TensorId(0, None, "optimizer_state", *_split(f"{path}.exp_avg_sq")),
                tensor=0.05 * gradient.square(),
            )
            found.append(second)
        found.append(record)
        if record.id.kind == "main_grad" and record.id.path == [*gradients][-1]:
            found.append(Record(NORM, norm))
    return found


def _split(path: str) -> tuple[str, str]:
    module, _, name = path.partition(".")
    return module, name


def rung(
    folder: Path,
    point: Point,
    edit: Edit = healthy,
    *,
    limit: float = LIMIT,
    without: Callable[[TensorId], bool] = lambda id: False,
    notes: tuple[NoteEvent, ...] = (),
    dtype: str = "float64",
) -> RungTraces:
    """A rung whose candidate is correct except for `edit`; no trace has the tensors `without`."""

    def made(name: str, point: Point, epsilon: float, seed: int, edit: Edit = healthy) -> object:
        records = [r for r in clipped(dtype, epsilon, seed, limit) if not without(r.id)]
        return write(folder / name, records, point, dtype, edit, notes)

    epsilon = rung_named(dtype).epsilon
    return RungTraces(
        dtype,
        made("candidate", point, epsilon / 8, 3, edit),  # type: ignore[arg-type]
        made("reference", SINGLE, epsilon / 8, 1),  # type: ignore[arg-type]
        made("perturbed", SINGLE, epsilon, 2),  # type: ignore[arg-type]
    )


def norm_wrong(times: Mapping[int, float]) -> Edit:
    """An edit that makes the norm, and all clipped tensors, wrong by a factor per tp rank."""

    def edit(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
        factor = times[at["tp"]]
        match record.id.kind:
            case "grad_norm":
                return part * factor
            case "main_grad":
                return part / factor
            case "optimizer_state":
                return part / (factor**2 if record.id.name.endswith("_sq") else factor)
        return part

    return edit


def both(first: Edit, second: Edit) -> Edit:
    """One edit after another; a tensor that the first removes stays removed."""

    def edit(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor | None:
        changed = first(record, at, part)
        return None if changed is None else second(record, at, changed)

    return edit
