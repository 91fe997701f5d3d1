"""Measures how rounding errors grow with depth, as estimated and as observed in a distributed run.

Prints the relative error of every layer's output, and of the gradient of that output, in units of
the dtype's epsilon, as in TTrace's Figure 8. The estimate is the change of the reference under
noise, from which the allowance is computed. The observation is the error of a clean candidate at
tp=2 cp=2 sp.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from _measure import finish, machine, median, options, show
from _plot import MODEL_COLOURS, panels, plain_ticks, save
from _rungs import DTYPES, case, relative, rungs, session, whole

from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.judges.compare.rung import RungTraces

POINT = Point.of(tp=2, cp=2, sp=True)

PROGRAMS = ("gpt", "llama", "moe")

KINDS = {"activation": "outputs", "activation_grad": "gradients of outputs"}

#: Patterns of the layers, without the modules inside them.
MODULES = tuple(f"decoder.layers.{'[0-9]' * digits}" for digits in (1, 2, 3))


def main() -> None:
    asked = options(__doc__)
    found = asked.figures
    if found is None:
        facts = machine()
        layers = 8 if asked.quick else 128
        runs = [one for program in PROGRAMS for one in measure(program, layers)]
        found = {"machine": facts, "point": str(POINT), "runs": runs}
    show_growth(found["runs"])
    if asked.plots:
        draw(found["runs"], asked.plots)
    finish("layers", found["machine"], {"point": found["point"], "runs": found["runs"]})


def measure(program: str, layers: int) -> Iterator[dict[str, Any]]:
    """The errors of a program by layer, one entry for each dtype and kind."""
    # Below float64, the Runs that measure rounding repeat the decisions of the reference's routers.
    kinds = (*KINDS, "decision")
    settings = Settings(timeout=3600, record_kinds=kinds, record_modules=MODULES)
    arguments = {"layers": layers, "steps": 1, "microbatches": 1}
    with session(settings) as opened:
        for dtype, rung in rungs(opened, case(program, POINT, settings, arguments)):
            for kind in KINDS:
                yield {"program": program, "dtype": dtype, "kind": kind, **errors(rung, kind)}


def errors(rung: RungTraces, kind: str) -> dict[str, list[float]]:
    """The estimated and the observed relative error of every layer in order, in epsilons."""
    by_layer = sorted((layer(id), id) for id in rung.reference.ids() if id.kind == kind)
    found: dict[str, list[float]] = {"estimated": [], "observed": []}
    for _, id in by_layer:
        reference = whole(rung.reference, id)
        candidate = whole(rung.candidate, id, reference.shape)
        responses = [whole(trace, id) - reference for trace in rung.measures()]
        unit = float(torch.finfo(getattr(torch, rung.dtype)).eps)
        estimated = max(relative(response, reference) for response in responses)
        found["estimated"].append(estimated / unit)
        found["observed"].append(relative(candidate - reference, reference) / unit)
    return found


def layer(id: TensorId) -> int:
    """The number of the layer that a tensor belongs to."""
    found = re.fullmatch(r"decoder\.layers\.(\d+)", id.module)
    assert found is not None, id
    return int(found[1])


def show_growth(runs: list[dict[str, Any]]) -> None:
    rows = []
    for one in runs:
        estimated, observed = one["estimated"], one["observed"]
        ratios = [o / e for o, e in zip(observed, estimated, strict=True)]
        ends = (estimated[0], observed[0], estimated[-1], observed[-1])
        rows.append(
            [
                f"{one['program']}, {one['dtype']}, {KINDS[one['kind']]}",
                len(estimated),
                *(f"{value:.2f}" for value in (*ends, median(ratios), max(ratios))),
            ]
        )
    columns = ["relative error / epsilon", "layers", "first, est.", "obs.", "last, est.", "obs."]
    columns += ["obs./est., median", "most"]
    show(f"Rounding by layer, estimated on one device and observed at {POINT}", columns, rows)


def draw(runs: list[dict[str, Any]], folder: Path) -> None:
    """Draw layers.svg: a row per kind, a column per dtype; estimates as lines, observed as dots."""
    figure, axes = panels(len(KINDS), len(DTYPES), 9, 5)
    for row, kind in enumerate(KINDS):
        for column, dtype in enumerate(DTYPES):
            axis = axes[row, column]
            for one in runs:
                if (one["kind"], one["dtype"]) != (kind, dtype):
                    continue
                numbers = range(len(one["estimated"]))
                colour, name = MODEL_COLOURS[one["program"]], one["program"]
                axis.semilogy(
                    numbers, one["estimated"], color=colour, lw=1.2, label=f"{name}, estimated"
                )
                axis.semilogy(
                    *(numbers[::8], one["observed"][::8], "."),
                    color=colour,
                    ms=4,
                    label=f"{name}, observed",
                )
            plain_ticks(axis.yaxis)
            axis.axhline(1, color="black", lw=0.6, ls="--")
            axis.set_title(f"{dtype}, {KINDS[kind]}")
        axes[row, 0].set_ylabel("relative error / epsilon")
    for axis in axes[-1]:
        axis.set_xlabel("layer")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    save(figure, folder, "layers")


if __name__ == "__main__":
    main()
