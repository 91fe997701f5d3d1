"""What the judges of a test found: each rung as judged, and what all of them say together.

Made by the ladder.  Data alone: `report` makes the text of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pytest_trainsafe.core.finding import Finding, Located, Verdict
from pytest_trainsafe.judge.compare.comparison import Comparison
from pytest_trainsafe.judge.compare.declarations.misaveraged import Misaveraged
from pytest_trainsafe.judge.compare.declarations.misdeclared import Misdeclared
from pytest_trainsafe.judge.compare.declarations.propose import Proposal
from pytest_trainsafe.sweep.point_summary import PointSummary

if TYPE_CHECKING:
    from pytest_trainsafe.sweep.case import Case


@dataclass(frozen=True, slots=True)
class Advice:
    """Declarations that are missing or wrong.  `written` says where a proposal was written to."""

    misaveraged: Misaveraged | None = None
    misdeclared: Misdeclared | None = None
    proposal: Proposal | None = None
    written: str = ""


@dataclass(slots=True)
class Judged:
    """One rung as judged: its comparison, and what stays in doubt.

    `rounding` is the dtype whose rounding was allowed, and `cast` says where the program
    narrows to it ("float32 model.py:12") if that is not `dtype`.  `reference` names what the
    candidate was compared with.  `hints` are doubts about how a failed run was set up,
    `not_compared` what was not compared, `samples` counts the samples of noise that measured its
    rounding.  `explained` says that `advice` on declarations explains all that failed.
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

    @property
    def failed(self) -> bool:
        """Whether the rung is no pass."""
        return self.comparison.failed or bool(self.doubts)


@dataclass(frozen=True, slots=True)
class LadderJudgement:
    """The rungs of one test, from the widest down to the first that failed.

    `program` and `point` name the candidate; `case` is its test, None for traces without one.
    `left_out` says why rungs are absent, `located` what a localisation found, and `summary` what
    the terminal's summary has of the Point.
    """

    program: str
    point: str
    rungs: Sequence[Judged]
    case: Case | None = None
    left_out: Sequence[str] = ()
    located: Located | None = None
    summary: PointSummary = field(default_factory=lambda: PointSummary(point="", verdict="pass"))
    judge: str = "compare"

    @property
    def verdict(self) -> Verdict:
        """`fail` where a rung differs, `inconclusive` where one stays in doubt, else `pass`."""
        if any(rung.comparison.failed for rung in self.rungs):
            return "fail"
        return "inconclusive" if any(rung.doubts for rung in self.rungs) else "pass"

    @property
    def not_compared(self) -> tuple[str, ...]:
        """What was not compared, rungs included, each once."""
        not_compared = (text for rung in self.rungs for text in rung.not_compared)
        return tuple(dict.fromkeys((*self.left_out, *not_compared)))

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What is wrong, in the order of dataflow, and what stays in doubt."""
        wrong = (f for rung in self.rungs for f in rung.comparison.findings if f.verdict == "fail")
        return (*wrong, *(f for rung in self.rungs for f in (*rung.doubts, *rung.hints)))


def lead_of(failing: Sequence[Finding]) -> Finding:
    """The first wrong tensor in dataflow; of its findings, the one that explains most."""
    first = [finding for finding in failing if finding.where == failing[0].where]
    return max(first, key=lambda f: (f.pattern is not None, f.judge == "compare"))
