"""What a judge is: it asks for Runs and returns a Judgement.

A judge starts no ranks, prints nothing and raises nothing about what it judges.  The Runs that it
asks for are launched, shared and cached by the session.  `registry` knows the judges, `joint`
makes one verdict of what they say.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from pytest_trainsafe.core.finding import Finding, Verdict
from pytest_trainsafe.judge.compare.tolerance.loosen import Loosen
from pytest_trainsafe.runs.traces import Runs
from pytest_trainsafe.sweep.case import Case
from pytest_trainsafe.trace.run_spec import RunSpec


class Judgement(Protocol):
    """What a judge says of one test.

    `findings` has what is wrong and what is in doubt, and `not_compared` sentences about what the
    judge did not examine.
    """

    @property
    def judge(self) -> str: ...
    @property
    def verdict(self) -> Verdict: ...
    @property
    def findings(self) -> Sequence[Finding]: ...
    @property
    def not_compared(self) -> Sequence[str]: ...


class Judge(Protocol):
    """Turns the Runs of a test into a Judgement.

    An instance is made without arguments, once for each process.
    """

    #: The name in findings, in reports and in the summary: "compare", "replay".
    name: str

    def required_runs(self, case: Case) -> Sequence[RunSpec]:
        """The Runs that this judge needs in any case; they are launched before any is judged."""
        ...

    def judge(
        self, case: Case, runs: Runs, *, loosen: Sequence[Loosen] = (), accept: Sequence[str] = ()
    ) -> Judgement:
        """Judge a test.  `runs` gives Runs on request, further ones too.

        `loosen` and `accept` are the test's, as `assert_trainsafe` takes them.  Raises GroupFailure
        where the ranks of a Run did not finish.
        """
        ...


@dataclass(frozen=True, slots=True)
class FoundJudgement:
    """A Judgement that is its findings: it fails if one does, and passes without any."""

    judge: str
    findings: Sequence[Finding] = ()
    not_compared: Sequence[str] = ()

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of a finding."""
        return worst(finding.verdict for finding in self.findings)


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """`fail` before `inconclusive` before `pass`."""
    given = set(verdicts)
    if "fail" in given:
        return "fail"
    return "inconclusive" if "inconclusive" in given else "pass"
