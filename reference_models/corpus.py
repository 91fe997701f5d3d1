"""The Points at which the reference models are judged, without bugs and with planted bugs.

Used by the tests and the benchmarks; does not import torch.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.reference_models.bugs import Bug
from pytest_trainsafe.sweep.case import Case
from pytest_trainsafe.sweep.marker import read_marker
from pytest_trainsafe.sweep.product import cells

Axes = Mapping[str, Sequence[Any]]

#: The axes that determine the number of ranks; each program's rules say which Points are valid.
TRANSFORMER: Axes = {
    "tp": [1, 2],
    "sp": [False, True],
    "cp": [1, 2],
    "dp": [1, 2],
    "pp": [1, 2],
}
EXPERTS: Axes = {
    "tp": [1, 2],
    "sp": [False, True],
    "cp": [1, 2],
    "dp": [1, 2],
    "ep": [1, 2],
}
#: Without dp, which the sweeps in WAYS have: the product of all axes has too many Points.
STAGES_AND_EXPERTS: Axes = {
    "tp": [1, 2],
    "sp": [False, True],
    "cp": [1, 2],
    "pp": [1, 2],
    "ep": [1, 2],
}
DATA: Axes = {"dp": [1, 2, 4], "zero": [0, 1]}

RANKS: dict[str, Axes] = {
    "gpt": TRANSFORMER,
    "llama": TRANSFORMER,
    "moe": EXPERTS,
    "deepseek": STAGES_AND_EXPERTS,
    "cnn": DATA,
    "lstm": DATA,
    "masked": {"dp": [1, 2]},
    "mixed": EXPERTS,
}

#: By program, further sweeps of axes with arguments, which vary how the program trains.
WAYS: dict[str, list[tuple[Axes, dict[str, object]]]] = {
    "gpt": [
        ({"recompute": ["selective", "full"], "tp": [1, 2], "cp": [1, 2]}, {}),
        ({"recompute": ["full"], "pp": [1, 2]}, {"recompute_num_layers": 2}),
        ({"tp": [1, 2], "cp": [2]}, {"cp_method": "ring"}),
        ({"tp": [2], "sp": [False, True]}, {"tp_overlap": True}),
        ({"dp": [2], "tp": [1, 2], "zero": [0, 1]}, {"bucket": 4096, "overlap_grad_reduce": True}),
        ({"dp": [2, 4], "zero": [1]}, {"overlap_param_gather": True, "clip": 0.5}),
        ({"pp": [1, 2], "dp": [1, 2], "tp": [1, 2]}, {"tied": True}),
        ({"pp": [2], "vpp": [2], "tp": [1, 2]}, {"layers": 4}),
        ({"pp": [2, 4]}, {"layers": 4, "schedule": "gpipe", "microbatches": 4}),
        ({"tp": [1, 2], "sp": [False, True], "cp": [1, 2], "dp": [1, 2]}, {"fp8": True}),
    ],
    "llama": [
        ({"tp": [1, 2], "cp": [2]}, {"cp_method": "ring"}),
        ({"dp": [2], "tp": [1, 2], "zero": [1]}, {}),
        ({"recompute": ["full", "selective"], "tp": [2], "sp": [True]}, {}),
    ],
    "moe": [
        ({"dp": [2], "ep": [1, 2]}, {"capacity_factor": 1.0}),
        ({"tp": [2], "sp": [True], "dp": [1, 2]}, {"top_k": 1}),
        ({"dp": [1, 2], "cp": [1, 2], "ep": [1, 2, 4], "zero": [1]}, {"clip": 0.5}),
        ({"dp": [2], "tp": [2], "sp": [True], "ep": [1, 2], "zero": [1]}, {}),
    ],
    "deepseek": [
        ({"dp": [2], "tp": [1, 2], "sp": [False, True], "ep": [1, 2], "zero": [0, 1]}, {}),
        ({"dp": [2], "pp": [2], "ep": [1, 2], "zero": [0, 1]}, {"clip": 0.5}),
        ({"recompute": ["full", "selective"], "tp": [1, 2], "sp": [False, True]}, {"layers": 3}),
        ({"pp": [2], "vpp": [2], "tp": [1, 2]}, {"layers": 4, "recompute_num_layers": 2}),
        ({"tp": [2], "sp": [False, True]}, {"tp_overlap": True, "shared": 2, "top_k": 1}),
        ({"cp": [2], "tp": [1, 2], "pp": [1, 2]}, {"dense_layers": 0, "clip": 0.5}),
        ({"dp": [2], "zero": [1]}, {"overlap_param_gather": True, "overlap_grad_reduce": True}),
    ],
    "cnn": [],
    "lstm": [],
    "masked": [({"dp": [1, 2], "recompute": [True]}, {}), ({"dp": [2]}, {"fp8": True})],
    "mixed": [
        ({"dp": [2], "tp": [1, 2], "ep": [1, 2]}, {"mixtures": "second", "norm": "layer"}),
        ({"tp": [2], "sp": [True]}, {"tied": True, "bias": True, "frozen": "norms"}),
        ({"cp": [2], "tp": [1, 2]}, {"gated": False, "kv_heads": 4, "unused": True}),
    ],
}


def planted(bug: Bug, settings: Settings) -> list[Case]:
    """The Cases of a bug, at all valid Points of its program, whether they trigger it or not."""
    axes = {**RANKS[bug.program], **bug.sweep}
    return list(points(bug.program, axes, bug.arguments, settings, {"bug": bug.name}))


def points(
    program: str,
    axes: Axes,
    arguments: Mapping[str, object],
    settings: Settings,
    candidate_arguments: Mapping[str, object] | None = None,
) -> Iterator[Case]:
    """Yield the valid Cases of a program of `reference_models` at the product of `axes`.

    A Case is one comparison of a candidate with its reference.  Both are called with `arguments`,
    and the candidate also with `candidate_arguments`.  Points that differ only in an axis without
    effect (sp without tp) occur once.
    """
    module = importlib.import_module(f"pytest_trainsafe.reference_models.{program}")
    free = {name: list(values) for name, values in axes.items() if name not in arguments}
    given = {"args": dict(arguments), "candidate_args": dict(candidate_arguments or {})}
    declared = read_marker([module.train], {**free, **given})
    for cell in cells(declared, settings, lambda *_: None):
        if cell.invalid is None:
            yield cell.case


def clean(program: str, settings: Settings, dtype: str) -> Iterator[Case]:
    """Yield the Cases at which a program is judged without a bug.

    These are the valid Points of the program's sweep in RANKS, over the parallel axes, and of its
    sweeps in WAYS, which vary how it trains, for example with recomputation.  At every Point, the
    axis dtype has the value `dtype`.
    """
    sweeps = [(RANKS[program], {}), *WAYS[program]]
    for axes, arguments in sweeps:
        for case in points(program, {**axes, "dtype": [dtype]}, arguments, settings):
            yield replace(case, settings=settings)
