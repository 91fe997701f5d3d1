"""Measures the smallest error that is caught, and the margin of clean programs, by dtype and depth.

A clean candidate (tp=2 cp=2 sp, 4 ranks) of the reference GPT is recorded in each dtype. Faults are
put into its tensors of the first step. Each multiplies elements by 1 + d or 1 - d: the main
gradient of a parameter, one token's row of a module's output, one rank's shard of a module's
output, or the loss. The sensitivity is the smallest d that is caught, with all samples of noise;
the table also shows the smallest d that is caught with one sample. The margin ("room") is the
largest ratio of an error of the clean candidate to its allowance, with one sample.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from _measure import finish, machine, median, options, show
from _plot import DTYPE_COLOURS, panels, save
from _rungs import DTYPES, case, rungs, session, whole

from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.core.indices import index_arrays
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.judges.compare.compare import compare
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.judges.compare.tensors.allowance import Allowance
from pytest_trainsafe.judges.compare.tensors.errors import Wide, norm
from pytest_trainsafe.judges.compare.tensors.tensor import allowance_by, judge_allowed
from pytest_trainsafe.judges.compare.tolerance.resample import ROUNDS

POINT = Point.of(tp=2, cp=2, sp=True)

DEPTHS = (2, 8, 32, 128)

#: The samples of noise that judge a failure, unless its error is very close to the allowance.
SAMPLES = ROUNDS[1].samples

#: Up to this depth, two steps are recorded in full. Deeper models record one step, and only these
#: kinds of tensors, which the faults change.
FULL_DEPTH = 8
DEEP_KINDS = ("activation", "main_grad", "loss")

#: Parameters are judged by their updates, which only `compare` derives.
JUDGED_BY_UPDATE = frozenset({"param", "master_param"})

#: The largest relative error that is tried, and the factor to which the smallest one is determined.
LARGEST, PRECISION = 1e3, 1.1

#: A description of the elements that each fault scales.
FAULTS = {
    "main_grad": "a parameter's main gradient",
    "row": "one token's row of an output",
    "shard": "one rank's shard of an output",
    "loss": "the loss",
}


def main() -> None:
    asked = options(__doc__)
    found = asked.figures
    if found is None:
        facts = machine()
        depths = DEPTHS[:1] if asked.quick else DEPTHS
        runs = [one for layers in depths for one in measure(layers)]
        found = {"machine": facts, "point": str(POINT), "runs": runs}
    runs = found["runs"]
    show_caught(runs)
    show_room(runs)
    alarms = [(one["layers"], one["dtype"], text) for one in runs for text in one["false_alarms"]]
    if alarms:
        show("FALSE ALARMS on a clean candidate", ["layers", "dtype", "where"], alarms)
    if asked.plots:
        draw(runs, asked.plots)
    finish("sensitivity", found["machine"], {"point": found["point"], "runs": runs})
    if alarms:
        raise SystemExit(1)


def measure(layers: int) -> Iterator[dict[str, Any]]:
    """Yields the figures of one depth, dtype by dtype."""
    deep = layers > FULL_DEPTH
    settings = Settings(timeout=3600, record_kinds=DEEP_KINDS if deep else ())
    arguments = {"layers": layers, "microbatches": 2, "steps": 1 if deep else 2}
    with session(settings) as opened:
        one = case("gpt", POINT, settings, arguments)
        for dtype, rung in rungs(opened, one, samples=SAMPLES):
            yield {"layers": layers, "dtype": dtype, **judged(rung)}


def judged(rung: RungTraces) -> dict[str, Any]:
    """The smallest errors that are caught on this rung, and the worst ratios of the clean Run."""
    caught: dict[str, dict[str, float]] = {fault: {} for fault in FAULTS}
    at_once: dict[str, dict[str, float]] = {fault: {} for fault in FAULTS}
    first = replace(rung, resampled=())
    room: dict[str, tuple[float, str]] = defaultdict(lambda: (0.0, ""))
    for id in rung.reference.ids():
        if id.kind in JUDGED_BY_UPDATE:
            continue
        reference = whole(rung.reference, id)
        candidate = whole(rung.candidate, id, reference.shape)
        allowed, once = (_allowed(each, id, reference) for each in (rung, first))
        ratio = judge_allowed(candidate, reference, once, norm(reference), rung.dtype).ratio
        room[id.kind] = max(room[id.kind], (ratio, str(id)))
        for fault, region in faults(rung, id, reference.shape).items():
            name = f"micro-batch {id.microbatch}" if fault == "loss" else id.path
            for found, limit in ((caught, allowed), (at_once, once)):
                smallest = smallest_caught(candidate, reference, limit, rung.dtype, region)
                found[fault][name] = smallest
    comparison = compare(first)
    room["as judged, updates included"] = (comparison.worst, str(comparison.worst_id))
    return {
        "caught": {fault: summary(each) for fault, each in caught.items()},
        "caught_at_once": {fault: summary(each) for fault, each in at_once.items()},
        "worst_clean_ratio": {kind: ratio for kind, (ratio, _) in room.items()},
        "worst_clean_at": {kind: where for kind, (_, where) in room.items()},
        "false_alarms": [
            f"{finding.where}: {finding.check}, error {finding.error}, allowed {finding.allowed}"
            for finding in comparison.findings
            if finding.verdict == "fail"
        ],
    }


def _allowed(rung: RungTraces, id: TensorId, reference: Wide) -> Allowance:
    others = [whole(trace, id) for trace in rung.measures() if trace.holders(id)]
    return allowance_by(reference, others, rung.dtype, loosened=1.0, least=0.0)


def faults(rung: RungTraces, id: TensorId, shape: tuple[int, ...]) -> dict[str, Any]:
    """The elements of a tensor that each fault scales, as an index; {} if no fault applies."""
    if id.step == 0 and id.kind in ("main_grad", "loss"):
        return {id.kind: ...}
    # Outputs are [batch, sequence, features]; one micro-batch is enough.
    if (id.step, id.microbatch, id.kind, len(shape)) != (0, 0, "activation", 3):
        return {}
    rank, event = rung.candidate.holders(id)[-1]
    held = index_arrays(event.layout, rank.coordinates, rung.candidate.sizes, shape)
    return {"row": (0, shape[1] // 2), "shard": np.ix_(*held)}


def smallest_caught(
    candidate: Wide, reference: Wide, allowed: Allowance, dtype: str, region: Any
) -> float:
    """The smallest relative error of a region that is caught in both directions, up and down.

    Infinite if not even LARGEST is caught.
    """
    size = norm(reference)

    def caught(error: float) -> bool:
        for factor in (1 + error, 1 - error):
            faulty = candidate.copy()
            faulty[region] *= factor
            if judge_allowed(faulty, reference, allowed, size, dtype).passed:
                return False
        return True

    low, high = float(np.finfo(np.float64).eps), LARGEST
    if not caught(high):
        return float("inf")
    while high / low > PRECISION:
        middle = (high * low) ** 0.5
        low, high = (low, middle) if caught(middle) else (middle, high)
    return high


def summary(caught: dict[str, float]) -> dict[str, Any]:
    """The median and the largest of the smallest errors caught, and the name of the largest."""
    worst = max(caught, key=caught.__getitem__)
    return {
        "tensors": len(caught),
        "median": median(list(caught.values())),
        "worst": caught[worst],
        "worst_at": worst,
    }


def show_caught(runs: list[dict[str, Any]]) -> None:
    for fault, words in FAULTS.items():
        rows = [
            [
                f"{one['layers']} layers, {one['dtype']}",
                one["caught"][fault]["tensors"],
                f"{one['caught'][fault]['median']:.1e}",
                f"{one['caught'][fault]['worst']:.1e}",
                one["caught"][fault]["worst_at"],
                *(f"{one['caught_at_once'][fault][key]:.1e}" for key in ("median", "worst")),
            ]
            for one in runs
        ]
        columns = ["smallest error caught", "tensors", "median", "worst", "worst at"]
        columns += ["by one sample", "worst"]
        show(f"Scaling {words}, step 0, {POINT}", columns, rows)


def show_room(runs: list[dict[str, Any]]) -> None:
    rows = [
        [
            kind,
            *(
                f"{one['worst_clean_ratio'][kind]:.2f}" if kind in one["worst_clean_ratio"] else ""
                for one in runs
            ),
        ]
        for kind in runs[0]["worst_clean_ratio"]
    ]
    columns = ["error / allowed, worst", *(f"{one['layers']} {one['dtype']}" for one in runs)]
    show("What a clean candidate uses of its allowance (above 1 would fail)", columns, rows)


def draw(runs: list[dict[str, Any]], folder: Path) -> None:
    """Draw sensitivity.svg: a panel per fault, with lines of the median and the worst tensor."""
    drawn = ("main_grad", "row", "shard")
    figure, axes = panels(1, len(drawn), 9, 3.2)
    for axis, fault in zip(axes[0], drawn, strict=True):
        for dtype in DTYPES:
            own = [one for one in runs if one["dtype"] == dtype]
            depths = [one["layers"] for one in own]
            for key, style in (("median", "o-"), ("worst", "o:")):
                smallest = [one["caught"][fault][key] for one in own]
                label = f"{dtype}, {key}"
                axis.loglog(
                    depths, smallest, style, color=DTYPE_COLOURS[dtype], label=label, ms=3, lw=1
                )
        axis.set_title(f"Scaling {FAULTS[fault]}")
        axis.set_xlabel("layers")
        axis.set_xticks([one["layers"] for one in runs if one["dtype"] == DTYPES[0]])
        axis.xaxis.set_major_formatter("{x:.0f}")
        axis.minorticks_off()
        axis.set_ylim(1e-15, 10)
    axes[0, 0].set_ylabel("smallest relative error caught")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=6)
    save(figure, folder, "sensitivity")


if __name__ == "__main__":
    main()
