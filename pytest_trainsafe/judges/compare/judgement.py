"""The results of judging a test: each rung, and all rungs together.

Made by the ladder.  These are data only; `text` formats them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from pytest_trainsafe.core.code_files import relative
from pytest_trainsafe.core.finding import Finding, Verdict
from pytest_trainsafe.judges.compare.comparison import Comparison
from pytest_trainsafe.judges.compare.fault.located import Located
from pytest_trainsafe.sweep.point_summary import PointSummary

if TYPE_CHECKING:
    from pytest_trainsafe.judges.compare.declarations.misaveraged import Misaveraged
    from pytest_trainsafe.judges.compare.declarations.misdeclared import Misdeclared
    from pytest_trainsafe.judges.compare.declarations.proposal import Proposal
    from pytest_trainsafe.report.panels import Panel
    from pytest_trainsafe.sweep.case import Case


@dataclass(frozen=True, slots=True)
class Advice:
    """Missing or wrong annotations that may explain a failure.

    `misaveraged` describes wrongly declared averages of gradients, `misdeclared` wrongly declared
    layouts, and `proposal` annotations to add.  `written` is the file that the proposal was written
    to, "" if it was not written.  `watched` is the "file:line" that calls ctx.watch, "" if unknown.
    """

    misaveraged: Misaveraged | None = None
    misdeclared: Misdeclared | None = None
    proposal: Proposal | None = None
    written: str = ""
    watched: str = ""


@dataclass(slots=True)
class RungJudgement:
    """One judged rung: its comparison and its doubts, which are inconclusive findings.

    `accepted` holds the doubts that the user accepts, and `doubts` the others.  `rounding` is the
    dtype whose rounding was allowed; if that is not `dtype`, `cast` is where the program casts to
    it ("float32 model.py:12").  `reference` describes what the candidate was compared with.
    `hints` are doubts about the setup of a failed run, `not_compared` describes what was not
    compared, and `samples` counts the noise samples that measured rounding.  `explained` is true if
    `advice` explains every failure.  `rest` judges the candidate with the layouts that `advice`
    proposes, if they explain only some failures; else it is None.
    """

    dtype: str
    rounding: str
    comparison: Comparison
    doubts: list[Finding]
    accepted: list[Finding]
    hints: list[Finding] = field(default_factory=list)
    cast: str = ""
    reference: str = "a single device"
    not_compared: list[str] = field(default_factory=list)
    advice: Advice = Advice()
    explained: bool = False
    samples: int = 1
    rest: RungJudgement | None = None

    @property
    def missing(self) -> Proposal | None:
        """The missing annotations with which the report starts; None if it starts otherwise."""
        proposal = self.advice.proposal
        return proposal if proposal is not None and proposal.leads else None

    @property
    def widened(self) -> str:
        """The sentence that a cast of the program decides which errors pass; "" if none does."""
        if self.rounding == self.dtype:
            return ""
        where = relative(self.cast.partition(" ")[2]) or "an unknown place"
        return (
            f"{self.dtype} was judged by the rounding of {self.rounding}: the program casts to "
            f"{self.rounding} at {where}; use ctx.dtype there to be judged by the rounding of "
            f"{self.dtype}"
        )

    @property
    def failed(self) -> bool:
        """Whether the comparison failed or a doubt is not accepted."""
        return self.comparison.failed or bool(self.doubts)


@dataclass(frozen=True, slots=True)
class LadderJudgement:
    """The rungs of one test, from the widest down to the first that failed.

    `program` and `point` name the candidate; `case` is its test, None for traces without one.
    `left_out` says why rungs were skipped, `located` is the result of localisation, and `summary`
    is the Point's entry in the terminal's summary.  If a page shows the run, `placed` has the
    stages of a pipeline and the collectives, `pictures` the values of the first wrong tensors, and
    `ran` the lines that the candidate is known to have run, and `reference_ran` the reference.
    """

    program: str
    point: str
    rungs: Sequence[RungJudgement]
    case: Case | None = None
    left_out: Sequence[str] = ()
    located: Located | None = None
    summary: PointSummary = field(default_factory=lambda: PointSummary(point="", verdict="pass"))
    judge: str = "compare"
    placed: Sequence[Panel] = ()
    pictures: Sequence[Panel] = ()
    ran: frozenset[str] = frozenset()
    reference_ran: frozenset[str] = frozenset()
    panels: ClassVar[str] = "pytest_trainsafe.judges.compare.panels"
    text: ClassVar[str] = "pytest_trainsafe.judges.compare.text"

    @property
    def verdict(self) -> Verdict:
        """`fail` if a rung's comparison fails, `inconclusive` if a rung has doubts, else `pass`."""
        if any(rung.comparison.failed for rung in self.rungs):
            return "fail"
        return "inconclusive" if any(rung.doubts for rung in self.rungs) else "pass"

    @property
    def not_compared(self) -> tuple[str, ...]:
        """What was not compared, in all rungs, without duplicates."""
        not_compared = (text for rung in self.rungs for text in rung.not_compared)
        return tuple(dict.fromkeys((*self.left_out, *not_compared)))

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The failures, in dataflow order, then the doubts."""
        wrong = (f for rung in self.rungs for f in rung.comparison.findings if f.verdict == "fail")
        return (*wrong, *(f for rung in self.rungs for f in (*rung.doubts, *rung.hints)))


def lead_of(failing: Sequence[Finding]) -> Finding:
    """The finding that leads the report: one on the first wrong tensor in dataflow order.

    If that tensor has several findings, a finding that names a known relation to the reference
    (`Finding.pattern`) is preferred, then a finding of the compare judge.  `failing` must be in
    dataflow order.
    """
    first = [finding for finding in failing if finding.where == failing[0].where]
    return max(first, key=lambda f: (f.pattern is not None, f.judge == "compare"))


def suspect(lead: Finding) -> str:
    """A phrase on the code of a Finding that no localisation has found: whose code it is."""
    if lead.where is None:
        return "gives it" if lead.source.partition(":")[0].endswith(".py") else "the entry"
    if not lead.module_class:
        return "starts the backward: no gradient of an output comes before this one"
    text = f"module class {lead.module_class}"
    if not lead.user:
        return text
    return f"{text}: the backward of what uses the output makes its gradient, here {lead.user}"


def ladder_of(judgements: Iterable[object]) -> LadderJudgement | None:
    """The comparison among the judgements of a test; None if it did not run."""
    return next((each for each in judgements if isinstance(each, LadderJudgement)), None)
