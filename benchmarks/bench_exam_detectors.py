"""Counts what simple detectors find in the exam: they read losses and gradient norms only.

Each detector reads the losses that a program of `learn_exam` returns, and the norms of the
gradients of an optimizer before each of its steps.  A mistake is caught if the detector fires on
its variant and not on the healthy twin.  No detector is fitted to other runs:

spike     a value is more than five times the median of the eight before it
trend     the mean of the last third is not below that of the first third
z-score   a value is more than three standard deviations from the mean of the series
LOF       the local outlier factor of scikit-learn has an outlier, with its default settings
forest    the same of its isolation forest

The last two need scikit-learn, and are left out without it.  `--rows FILE` keeps what fires where.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import math
import statistics
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from _measure import ROOT, finish, machine, show
from torch.multiprocessing.spawn import spawn
from torch.optim.optimizer import register_optimizer_step_pre_hook

sys.path.insert(0, str(ROOT / "benchmarks" / "learn_exam"))
from exam_cases import CASES, HEALTHY

Series = Sequence[float]
#: A program of the exam and its variant: None for a program without a mistake.
Call = tuple[str, int, bool | None]

_BEFORE, _SPIKE, _SIGMAS = 8, 5.0, 3.0
#: Shorter series say nothing.
_LEAST = 6


def spike(series: Series) -> bool:
    """Whether a value is far above those before it."""
    return any(
        value > _SPIKE * statistics.median(series[max(0, at - _BEFORE) : at]) > 0
        for at, value in enumerate(series)
        if at >= _LEAST
    )


def trend(series: Series) -> bool:
    """Whether the end of the series is not below its begin."""
    third = len(series) // 3
    return statistics.fmean(series[-third:]) >= statistics.fmean(series[:third])


def z_score(series: Series) -> bool:
    """Whether a value is far from the mean."""
    middle, spread = statistics.fmean(series), statistics.pstdev(series)
    return any(abs(value - middle) > _SIGMAS * spread for value in series) if spread else False


def _of_sklearn(module: str, name: str, **settings: Any) -> Callable[[Series], bool]:
    def fires(series: Series) -> bool:
        found: Any = getattr(importlib.import_module(module), name)(**settings)
        return bool((found.fit_predict([[value] for value in series]) == -1).any())

    return fires


def detectors() -> Mapping[str, Callable[[Series], bool]]:
    """The detectors by name."""
    found: dict[str, Callable[[Series], bool]] = {
        "spike": spike,
        "trend": trend,
        "z-score": z_score,
    }
    if importlib.util.find_spec("sklearn") is not None:
        found["LOF"] = _of_sklearn("sklearn.neighbors", "LocalOutlierFactor")
        found["forest"] = _of_sklearn("sklearn.ensemble", "IsolationForest", random_state=0)
    return found


def run(call: Call) -> dict[str, list[float]]:
    """The losses of a run and the norms of its gradients."""
    module, _, healthy = call
    norms: list[float] = []

    def before(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        grads = [p.grad for group in optimizer.param_groups for p in group["params"]]
        squares = [float(g.detach().float().square().sum()) for g in grads if g is not None]
        norms.append(math.sqrt(sum(squares)))

    hook = register_optimizer_step_pre_hook(before)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            given = {} if healthy is None else {"healthy": healthy}
            outcome = importlib.import_module(module).train(**given)
    finally:
        hook.remove()
    losses: Sequence[float] = next((each for name, each in outcome.items() if "loss" in name), ())
    return {"loss": [float(value) for value in losses], "gradient": norms}


def _rank(rank: int, calls: Sequence[Call], folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    found = [run(call) for call in calls]
    if not rank:
        (Path(folder) / "found.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def runs(calls: Sequence[Call]) -> dict[Call, dict[str, list[float]]]:
    """The series of each call; those of two ranks are rank 0's."""
    found = {call: run(call) for call in calls if call[1] == 1}
    together = [call for call in calls if call[1] == 2]
    with tempfile.TemporaryDirectory() as folder:
        spawn(_rank, (together, folder), nprocs=2)
        series = json.loads((Path(folder) / "found.json").read_text())
    return {**found, **dict(zip(together, series, strict=True))}


def fires(series: Mapping[str, list[float]]) -> list[str]:
    """The detectors that fire on a run, with the series."""
    found = []
    for what, values in series.items():
        if len(values) < _LEAST:
            continue
        finite = [value for value in values if math.isfinite(value)]
        for name, detector in detectors().items():
            if len(finite) < len(values) or detector(finite):
                found.append(f"{name} of {what}")
    return found


def main() -> None:
    """Run the exam, and count."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=Path, help="Write what fires where to this file, as JSON")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    facts = machine()
    bugs: list[Call] = [(case.module, case.world, False) for case in CASES]
    twins: list[Call] = [(case.module, case.world, True) for case in CASES]
    healthy: list[Call] = [(each.module, each.world, None) for each in HEALTHY]
    found = {call: fires(series) for call, series in runs([*bugs, *twins, *healthy]).items()}
    if asked.rows:
        asked.rows.write_text(json.dumps([[*call, names] for call, names in found.items()]))
    rows = []
    for what in ("loss", "gradient"):
        for name in detectors():
            both = f"{name} of {what}"
            caught = sum(
                both in found[bug] and both not in found[twin]
                for bug, twin in zip(bugs, twins, strict=True)
            )
            alarms = [sum(both in found[call] for call in calls) for calls in (twins, healthy)]
            rows.append((name, what, f"{caught} of {len(bugs)}", *alarms))
    show("Simple detectors", ("detector", "series", "caught", "twins", "healthy"), rows)
    finish("exam_detectors", facts, {"rows": rows})


if __name__ == "__main__":
    main()
