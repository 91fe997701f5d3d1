"""What comparing one rung found.  Made by the judge; read by the guards and the report."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import msgspec

from pytest_trainsafe.core.finding import Finding
from pytest_trainsafe.core.tensor_id import INITIAL, TensorId
from pytest_trainsafe.judge.compare.explain.factor_words import Factor
from pytest_trainsafe.judge.compare.model_inputs import Given
from pytest_trainsafe.judge.compare.tolerance.loosen import Loosen


@dataclass(slots=True)
class Comparison:
    """What comparing one rung found.

    `compared` counts the tensors that were judged, by kind; `uncovered` those of the reference
    that have no counterpart, `undetermined` the updates of which rounding decides every element,
    `local` the tensors that are known to have none at this Point, and `compiled` those of modules
    that the candidate ran inside a compiled region.
    `flipped` of all `choices` of decisions are others than the reference's, within rounding.
    `worst` is the largest error over its allowance of all tensors, at `worst_id`.
    `insensitive` lists the tensors whose allowance is as large as themselves, `zero` counts
    those of the reference that are zero throughout, by kind,
    `moved` counts the parameter updates that are not zero in the reference, and `loosened` lists
    the tensors judged with a user's factor.  `suspects` lists the tensors whose values were not
    kept and whose sketches differ by more than rounding surely explains: nothing is decided.
    `flipped_in` is the first step in which an update went the other way where rounding decides.
    `given` lists the model's inputs that differ from the reference's, with their places in dataflow
    and what they are; `unclear` those whose layout is not known.  `apart` says of the buffers
    that were not compared, or not on every rank, why.
    `factor` is what all main gradients of the failing step share, None where they share nothing.
    """

    dtype: str
    findings: list[Finding] = field(default_factory=list)
    compared: Counter[str] = field(default_factory=Counter)
    uncovered: Counter[str] = field(default_factory=Counter)
    local: Counter[str] = field(default_factory=Counter)
    compiled: Counter[str] = field(default_factory=Counter)
    undetermined: int = 0
    choices: int = 0
    flipped: int = 0
    worst: float = 0.0
    worst_id: TensorId | None = None
    insensitive: list[TensorId] = field(default_factory=list)
    zero: Counter[str] = field(default_factory=Counter)
    moved: int = 0
    loosened: list[tuple[TensorId, Loosen]] = field(default_factory=list)
    suspects: list[TensorId] = field(default_factory=list)
    flipped_in: int | None = None
    given: list[tuple[int, TensorId, Given]] = field(default_factory=list)
    unclear: list[TensorId] = field(default_factory=list)
    apart: dict[str, str] = field(default_factory=dict)
    factor: Factor | None = None

    @property
    def failed(self) -> bool:
        return any(finding.verdict == "fail" for finding in self.findings)

    @property
    def wrong(self) -> Counter[str]:
        """How many tensors have a failing finding, by kind; those not comparable included."""
        ids = {f.where for f in self.findings if f.verdict == "fail" and f.where is not None}
        return Counter(id.kind for id in {_as_judged(id) for id in ids})


def _as_judged(id: TensorId) -> TensorId:
    """Parameters are judged by their updates, whatever of them is wrong."""
    if id.kind in ("param", "master_param") and id.step != INITIAL:
        return msgspec.structs.replace(id, kind="update")
    return id
