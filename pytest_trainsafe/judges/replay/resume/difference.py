"""One difference between a resumed Run and the uninterrupted one, and its Finding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pytest_trainsafe.core.finding import Finding, Pattern, Subject, Verdict
from pytest_trainsafe.core.tensor_id import TensorId

#: What differs; the stable codes of findings are "resume:" and one of these.
Code = Literal[
    "model",
    "moment",
    "step_counter",
    "lr_schedule",
    "scaler",
    "frozen",
    "average",
    "clip_limit",
    "data_order",
    "rng",
    "save",
    "nondeterministic",
    "nothing",
    "unknown",
]

#: The parts of a training's state in the order in which reports list them.
ORDER: tuple[Code, ...] = (
    *("model", "moment", "step_counter", "lr_schedule", "scaler", "frozen", "average"),
    *("clip_limit", "rng", "data_order"),
)


@dataclass(frozen=True, slots=True)
class Difference:
    """What differs (`message`), and its usual cause.

    `where` is the tensor that differs; if it is None, `subject` names what differs instead.
    `source` is the line that drew random numbers, or "".
    """

    code: Code
    message: str
    cause: str
    rank: int = 0
    where: TensorId | None = None
    subject: Subject | None = None
    source: str = ""
    evidence: tuple[tuple[str, str | int | float | bool], ...] = ()
    verdict: Verdict = "fail"

    def finding(self, dtype: str, first: str = "") -> Finding:
        """The Finding on this difference; `first` says where the Runs first differ."""
        check = f"resume:{self.code}"
        return Finding(
            verdict=self.verdict,
            judge="replay",
            check=check,
            message=self.message,
            where=self.where,
            subject=self.subject,
            evidence=(("rank", self.rank), *self.evidence),
            dtype=dtype,
            pattern=Pattern(check, first, "", self.cause),
            source=self.source,
        )
