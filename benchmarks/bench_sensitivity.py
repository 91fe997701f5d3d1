"""How small an error is still caught, and how much room a clean program has.

One clean candidate (tp=2 cp=2 sp, 4 ranks) in each dtype, 2 and 8 layers deep.  The main
gradient of every parameter, and the loss, is scaled by 1 + d; the smallest d that is judged
wrong is the sensitivity there.  The room is how near the clean candidate came to its allowance.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from _measure import finish, machine, median, quick, show

from pytest_trainsafe.align.logical import logical_tensor
from pytest_trainsafe.compare.errors import Wide
from pytest_trainsafe.compare.judge import compare
from pytest_trainsafe.compare.rung import Rung
from pytest_trainsafe.compare.tensor import judge_tensor
from pytest_trainsafe.reference_models import gpt
from pytest_trainsafe.session import Session
from pytest_trainsafe.settings import Settings
from pytest_trainsafe.sweep.case import Case
from pytest_trainsafe.sweep.point import Point
from pytest_trainsafe.sweep.program import resolve
from pytest_trainsafe.trace.reader import Trace
from pytest_trainsafe.trace.schema import TensorId

DTYPES = ("float64", "float32", "bfloat16")
POINT = Point.of(tp=2, cp=2, sp=True)

#: Parameters are judged by their updates, which only `compare` derives.
JUDGED_BY_UPDATE = frozenset({"param", "master_param"})

#: Errors are looked for up to this factor, and pinned down to a tenth.
LARGEST, PRECISION = 1e3, 1.1


def main() -> None:
    depths = (2,) if quick(__doc__) else (2, 8)
    facts = machine()
    figures = [one for layers in depths for one in measure(layers)]
    rows = [
        [
            f"{one['layers']} layers, {one['dtype']}",
            one["parameters"],
            *(f"{one[key]:.1e}" for key in ("main_grad_median", "main_grad_worst", "loss_worst")),
            one["main_grad_worst_at"],
        ]
        for one in figures
    ]
    columns = ["smallest error caught", "parameters", "median", "worst", "loss", "worst at"]
    show(f"Scaling errors of main gradients and of the loss, step 0, {POINT}", columns, rows)
    show_room(figures)
    alarms = [
        (one["layers"], one["dtype"], text) for one in figures for text in one["false_alarms"]
    ]
    if alarms:
        show("FALSE ALARMS on a clean candidate", ["layers", "dtype", "where"], alarms)
    finish("sensitivity", facts, {"point": str(POINT), "runs": figures})
    if alarms:
        raise SystemExit(1)


def measure(layers: int) -> Iterator[dict[str, Any]]:
    """The figures of one depth, dtype by dtype."""
    arguments = {"layers": layers}
    case = Case(POINT, resolve(gpt.train), Settings(), arguments, arguments)
    with tempfile.TemporaryDirectory(prefix="trainsafe-sensitivity-") as temporary:
        session = Session(case.settings, Path(temporary))
        try:
            reference, candidate = session.reference(case), session.candidate(case)
            for dtype in DTYPES:
                reference.prefetch(dtype)
                candidate.prefetch(dtype)
            for dtype in DTYPES:
                rung = Rung(
                    dtype=reference.rounding(dtype),
                    candidate=candidate.at(dtype),
                    reference=reference.at(dtype),
                    perturbed=reference.perturbed(dtype),
                    shadow=reference.at("float64") if dtype != "float64" else None,
                )
                yield {"layers": layers, "dtype": dtype, **judged(rung)}
        finally:
            session.close()


def judged(rung: Rung) -> dict[str, Any]:
    """What is caught on this rung, and what a clean candidate leaves of its allowance."""
    traces = [trace for trace in (rung.perturbed, rung.usable_shadow()) if trace is not None]
    caught: dict[str, dict[str, float]] = {"main_grad": {}, "loss": {}}
    room: dict[str, tuple[float, str]] = defaultdict(lambda: (0.0, ""))
    for id in rung.reference.ids():
        if id.kind in JUDGED_BY_UPDATE:
            continue
        reference = values(rung.reference, id)
        candidate = values(rung.candidate, id, reference.shape)
        others = [values(trace, id) for trace in traces if trace.holders(id)]
        ratio = judge_tensor(candidate, reference, others, rung.dtype).ratio
        room[id.kind] = max(room[id.kind], (ratio, str(id)))
        if id.kind in caught and id.step == 0:
            smallest = smallest_caught(candidate, reference, others, rung.dtype)
            name = id.path if id.kind == "main_grad" else f"micro-batch {id.microbatch}"
            caught[id.kind][name] = smallest
    comparison = compare(rung)
    room["as judged, updates included"] = (comparison.worst, str(comparison.worst_id))
    gradients = caught["main_grad"]
    worst = max(gradients, key=gradients.__getitem__)
    return {
        "parameters": len(gradients),
        "main_grad_median": median(list(gradients.values())),
        "main_grad_worst": gradients[worst],
        "main_grad_worst_at": worst,
        "loss_worst": max(caught["loss"].values()),
        "worst_clean_ratio": {kind: ratio for kind, (ratio, _) in room.items()},
        "worst_clean_at": {kind: where for kind, (_, where) in room.items()},
        "false_alarms": [
            f"{finding.where}: {finding.check}, error {finding.error}, allowed {finding.allowed}"
            for finding in comparison.findings
            if finding.verdict == "fail"
        ],
    }


def smallest_caught(candidate: Wide, reference: Wide, others: list[Wide], dtype: str) -> float:
    """The smallest relative error of the whole tensor, in its worse direction, that is caught.

    Infinite where not even LARGEST is.
    """

    def caught(error: float) -> bool:
        return all(
            not judge_tensor(candidate * (1 + signed), reference, others, dtype).passed
            for signed in (error, -error)
        )

    low, high = float(np.finfo(np.float64).eps), LARGEST
    if not caught(high):
        return float("inf")
    while high / low > PRECISION:
        middle = (high * low) ** 0.5
        low, high = (low, middle) if caught(middle) else (middle, high)
    return high


def values(trace: Trace, id: TensorId, shape: tuple[int, ...] | None = None) -> Wide:
    """A logical tensor as a wide array."""
    tensor = logical_tensor(trace, id, shape).tensor
    if tensor is None:
        raise SystemExit(f"{id} cannot be put together from the ranks of {trace.point}")
    found: Wide = tensor.numpy()
    return found


def show_room(figures: list[dict[str, Any]]) -> None:
    kinds = list(figures[0]["worst_clean_ratio"])
    rows = [
        [kind, *(f"{one['worst_clean_ratio'].get(kind, 0):.2f}" for one in figures)]
        for kind in kinds
    ]
    columns = ["error / allowed, worst", *(f"{one['layers']} {one['dtype']}" for one in figures)]
    show("What a clean candidate uses of its allowance (above 1 would fail)", columns, rows)


if __name__ == "__main__":
    main()
