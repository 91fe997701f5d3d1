"""A Finding: one judged fact.  Every judge returns Findings; its wing renders them as text."""

from __future__ import annotations

from typing import Literal

import msgspec

from pytest_trainsafe.core.tensor_id import TensorId

Verdict = Literal["pass", "fail", "inconclusive"]


class ModuleSubject(msgspec.Struct, frozen=True, tag="module"):
    """A module of the model, by its path; "" is the model itself."""

    path: str

    def __str__(self) -> str:
        return self.path or "the root module"


class CallSubject(msgspec.Struct, frozen=True, tag="call", omit_defaults=True):
    """A call of an API such as "torch.optim.Adam.step", and the "file:line" of the call."""

    api: str
    at: str = ""

    def __str__(self) -> str:
        return f"{self.api} at {self.at}" if self.at else self.api


class StreamSubject(msgspec.Struct, frozen=True, tag="stream", omit_defaults=True):
    """A stream of random numbers: a generator on one rank, or on every rank if `rank` is None."""

    generator: str
    rank: int | None = None

    def __str__(self) -> str:
        return self.generator if self.rank is None else f"{self.generator} of rank {self.rank}"


class RankSubject(msgspec.Struct, frozen=True, tag="rank"):
    """A rank of a Run."""

    rank: int

    def __str__(self) -> str:
        return f"rank {self.rank}"


class StepSubject(msgspec.Struct, frozen=True, tag="step"):
    """A step of the training."""

    step: int

    def __str__(self) -> str:
        return f"step {self.step}"


Subject = ModuleSubject | CallSubject | StreamSubject | RankSubject | StepSubject


class Pattern(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a wrong value relates to the right one.

    `name` is one of the compare judge's `patterns`, and `text` describes the evidence.
    `axis` is the mesh axis involved, or "".  `cause` is the likely cause, a clause that the report
    writes after the word "so".  `factor` is the wrong value divided by the right one if this is the
    same number for all elements, and 0.0 otherwise.  `equals` names the sizes that the factor
    equals, such as "1/dp", perhaps by chance.  `short` has evidence and cause in a few words, for
    reports of one line: "partial sums over dp, all-reduce missing"; "" if the finding's message
    is short enough.
    """

    name: str
    text: str
    axis: str = ""
    cause: str = ""
    factor: float = 0.0
    equals: tuple[str, ...] = ()
    short: str = ""


class Mismatch(msgspec.Struct, frozen=True, kw_only=True):
    """How a wrong tensor differs from its reference, element by element.

    `elements` is the number of elements, and `differing` the number that differ by more than
    `threshold`.  The threshold is the norm of the error that rounding may cause in the tensor,
    divided by the square root of `elements`; it is 0 where the values must be equal.
    `difference` is the greatest absolute difference (one that is not finite counts as the
    greatest), and `index` is the element that has it.  There `value` is the candidate's value and
    `expected` the reference's.
    """

    elements: int
    differing: int
    threshold: float
    difference: float
    index: tuple[int, ...]
    value: complex | float | int | bool
    expected: complex | float | int | bool


class Finding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One judged fact: verdict, location, evidence, likely cause.

    `judge` names the judge, or the part of a judge, that found the fact.  `check` is a stable code
    that names the check; users list this code in `accept` to accept an inconclusive finding.
    `order` is the finding's position in dataflow; the report starts with the failing finding whose
    position is the smallest.
    `where` is the tensor that the finding is about, or `subject` the module, call, random stream,
    rank or step.  `evidence` holds the facts behind the finding, each with a name.
    `error` is the measured error, and `allowed` the largest error that passes; both are relative
    Frobenius norms unless `message` says otherwise.
    `pattern` describes how a wrong tensor relates to the right one, for example by a factor.
    `mismatch` says how many elements of a wrong tensor differ, and which differs most; None if the
    tensor's values were not recorded, or have another shape than the reference's.
    `module_class` is the class of the tensor's module, and `source` the "file:line" of its code.
    For the gradient of an output they are those of `user`, the module whose gradient was computed
    just before: the backward of what uses an output computes the output's gradient.  Without one,
    `source` is the line that starts the backward, if that is known, and `module_class` is "".
    """

    verdict: Verdict
    judge: str
    check: str
    message: str
    where: TensorId | None = None
    subject: Subject | None = None
    evidence: tuple[tuple[str, str | int | float | bool], ...] = ()
    dtype: str = ""
    error: float | None = None
    allowed: float | None = None
    order: int = 0
    pattern: Pattern | None = None
    module_class: str = ""
    source: str = ""
    user: str = ""
    mismatch: Mismatch | None = None

    @property
    def about(self) -> TensorId | Subject | None:
        """What the finding is about: a tensor, or a module, call, random stream, rank or step."""
        return self.where if self.where is not None else self.subject
