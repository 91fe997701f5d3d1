"""The result of comparing a candidate with its reference in one dtype.

Made by the compare judge; read by the guards and the report.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from pytest_trainsafe.core.finding import Finding
from pytest_trainsafe.core.rungs.table import rung_named
from pytest_trainsafe.core.tensor_id import INITIAL, TensorId
from pytest_trainsafe.judges.compare.factor import Factor
from pytest_trainsafe.judges.compare.kinds.model_inputs import InputJudgement
from pytest_trainsafe.judges.loosen import Loosen

#: The kinds that are computed without an earlier update.  After the first update, rounding may
#: have chosen the sign of a step that the model ignores.
_BEFORE_UPDATES = frozenset({"activation", "activation_grad", "param_grad", "main_grad", "loss"})


class Measured(NamedTuple):
    """The error of one compared tensor and what is allowed, both relative to the reference's norm.

    `ratio` is the largest ratio of error to allowance over all checks of the tensor.
    """

    error: float
    allowed: float
    ratio: float


@dataclass(slots=True)
class Comparison:
    """The result of comparing a candidate with its reference in one dtype, `dtype`.

    Counts by kind: `compared`, the tensors that were judged; `uncovered`, the reference's tensors
    without a counterpart; `local`, those declared to have no counterpart at this Point; `compiled`,
    those of modules that the candidate ran inside a compiled region; `zero`, the reference's
    tensors that are zero everywhere.  `dealt` counts, by path, the gradients of micro-batches that
    no single micro-batch makes (`kinds/dealt.py`).

    `undetermined` counts the updates in which rounding decides the sign of every element, and
    `moved` the updates that are not zero in the reference.  `choices` counts the choices of all
    decisions, and `flipped` those that differ from the reference's within rounding.  `flipped_in`
    is the first step in which an update had the opposite sign because of rounding.

    `worst` is the largest ratio of error to allowance, at the tensor `worst_id`.  `insensitive`
    lists the tensors whose allowance is as large as their norm.  `note_size` keeps `wide`, the
    tensors whose allowance in float64 is wider than rounding explains, and `largest`, the largest
    root mean square by kind.  `loosened` lists the tensors judged with a user's factor.  `suspects`
    lists the tensors that were recorded only as sketches (random projections), and whose sketches
    differ too much to be certain that rounding is the cause: they are undecided.

    `given` lists the model inputs that differ from the reference's, with their positions in
    dataflow and the difference; `unclear` lists the inputs of unknown layout.  `apart` maps the
    path of each buffer that was not compared, or not on every rank, to the reason.  `in_step` maps
    the path of each gradient that the optimizer reduces inside its step to what was compared: "the
    mean over dp".  `terms` maps each gradient of an activation of which the ranks hold
    terms to the axes over which these add up (`kinds/terms.py`).  `factor` is the
    factor by which all main gradients of the failing step are wrong; None if they share none.

    `measured` has every compared tensor, in dataflow order, with its error if it was measured; it
    is None unless a page shows the run.  `unsought` has the wrong tensors after the first ones, for
    which no pattern was looked for.
    """

    dtype: str
    findings: list[Finding] = field(default_factory=list)
    compared: Counter[str] = field(default_factory=Counter)
    uncovered: Counter[str] = field(default_factory=Counter)
    local: Counter[str] = field(default_factory=Counter)
    compiled: Counter[str] = field(default_factory=Counter)
    dealt: Counter[str] = field(default_factory=Counter)
    undetermined: int = 0
    choices: int = 0
    flipped: int = 0
    worst: float = 0.0
    worst_id: TensorId | None = None
    insensitive: list[TensorId] = field(default_factory=list)
    wide: list[tuple[TensorId, float, float]] = field(default_factory=list)
    largest: dict[str, float] = field(default_factory=dict)
    zero: Counter[str] = field(default_factory=Counter)
    moved: int = 0
    loosened: list[tuple[TensorId, Loosen]] = field(default_factory=list)
    suspects: list[TensorId] = field(default_factory=list)
    flipped_in: int | None = None
    given: list[tuple[int, TensorId, InputJudgement]] = field(default_factory=list)
    unclear: list[TensorId] = field(default_factory=list)
    apart: dict[str, str] = field(default_factory=dict)
    in_step: dict[str, str] = field(default_factory=dict)
    terms: dict[TensorId, tuple[str, ...]] = field(default_factory=dict)
    factor: Factor | None = None
    measured: dict[TensorId, Measured | None] | None = None
    unsought: set[TensorId] = field(default_factory=set)

    @property
    def failed(self) -> bool:
        """Whether any finding has the verdict "fail"."""
        return any(finding.verdict == "fail" for finding in self.findings)

    @property
    def wrong(self) -> Counter[str]:
        """By kind, the number of tensors with a failing finding.

        A tensor that could not be compared, such as a missing one, counts too.  A parameter after a
        step counts as its update.
        """
        ids = {f.where for f in self.findings if f.verdict == "fail" and f.where is not None}
        return Counter(id.kind for id in {_as_judged(id) for id in ids})

    def note_size(self, id: TensorId, allowed: float, size: float) -> None:
        """Notes a passing tensor of the first step, which `guards/unstable.py` reads.

        `allowed` is its allowance relative to its norm, and `size` the root mean square of its
        values.
        """
        most = rung_named(self.dtype).steady
        if math.isinf(most) or id.step != 0 or id.kind not in _BEFORE_UPDATES:
            return
        self.largest[id.kind] = max(self.largest.get(id.kind, 0.0), size)
        if allowed > most:
            self.wide.append((id, allowed, size))


def _as_judged(id: TensorId) -> TensorId:
    """The id under which a tensor is judged: for a parameter after a step, that of its update."""
    if id.kind in ("param", "master_param") and id.step != INITIAL:
        return msgspec.structs.replace(id, kind="update")
    return id
