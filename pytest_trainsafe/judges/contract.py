"""The interface of judges: a judge requests Runs and returns a Judgement.

A judge starts no ranks, prints nothing, and raises no exception for a fault of the tested program.
The session launches, shares and caches the Runs that it requests.  `registry` has the judges, and
`joint` combines their verdicts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, Self

from pytest_trainsafe.config.checks import is_accepted
from pytest_trainsafe.core.finding import Finding, Verdict
from pytest_trainsafe.judges.loosen import Loosen
from pytest_trainsafe.report.panels import Panel
from pytest_trainsafe.runs.traces import Runs
from pytest_trainsafe.sweep.case import Case
from pytest_trainsafe.sweep.expectation import Expectation
from pytest_trainsafe.trace.run_spec import RunSpec


@dataclass(frozen=True, slots=True)
class JudgeOptions:
    """The arguments of `assert_trainsafe`, which apply to every judge.

    `loosen` multiplies tolerances. `accept` names the inconclusive checks that do not fail the
    test, including those that the marker and the settings accept. `expect` holds the expectations
    on random numbers that were passed to the assertion; the Case holds those of the marker.
    """

    loosen: Sequence[Loosen] = ()
    accept: Collection[str] = ()
    expect: Sequence[Expectation] = ()


class Judgement(Protocol):
    """The result of one judge for one test.

    `findings` lists failures and inconclusive checks. `not_compared` holds sentences about what the
    judge did not examine.

    A judgement may also have `text`, the import path of a module whose function `message` turns it
    into a whole report, and whose `first_line`, if there is one, into one line; `panels`, the
    import path of a module whose function `panels` shows it on a page (`report/panels.py`);
    `drawn`, panels that the judge made while the traces existed; `summary`, the Point's entry in
    the terminal's summary; `facts`, what a page says beside the first Finding, as rows of label and
    text; and `artefacts`, the paths of files that the judge made, by what they are.
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

    The judges of `assert_trainsafe` are created without arguments, once per process; those that an
    assertion asks alone (`alone`) are created with what the assertion was given.  A class may also
    have `checks`, a mapping from the names of its checks that can be inconclusive to what they
    mean: `accept` then takes these names.  A judge whose attribute `of_rungs` is true judges rungs:
    `assert_trainsafe` asks it only about tests that are judged at a rung whose `judge` it is.
    Where it is not asked and the test fails, it may still explain the failure: its method
    `explain(case, runs, options, lead)` gets the first failing finding, and returns a Judgement or
    None.
    """

    #: The name in findings, in reports and in the summary: "compare", "replay".
    name: str

    def required_runs(self, case: Case) -> Sequence[RunSpec]:
        """The Runs that this judge always needs; all of them are launched before judging begins."""
        ...

    def judge(self, case: Case, runs: Runs, options: JudgeOptions) -> Judgement:
        """Judge a test.  `runs` provides the Runs and launches further ones on request.

        Raises GroupFailure if the ranks of a Run did not finish.
        """
        ...


@dataclass(frozen=True, slots=True)
class FindingsJudgement:
    """A Judgement made from findings; its verdict is their worst, `pass` if there are none.

    `artefacts` has the paths of files that the judge made, by what they are.  `what` names the
    judged Run in a report: its program and its Point.  `drawn` has the panels that the judge made
    for a page while the traces existed.
    """

    judge: str
    findings: Sequence[Finding] = ()
    not_compared: Sequence[str] = ()
    artefacts: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    what: str = field(default="", kw_only=True)
    drawn: Sequence[Panel] = field(default=(), kw_only=True, repr=False)

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of the findings."""
        return worst(finding.verdict for finding in self.findings)

    def accepting(self, accept: Collection[str]) -> Self:
        """This judgement without the inconclusive findings that `accept` names.

        `not_compared` then says what they are.
        """
        excused = [
            finding
            for finding in self.findings
            if finding.verdict == "inconclusive" and is_accepted(finding.check, accept)
        ]
        notes = [f"{finding.check}, which is accepted: {finding.message}" for finding in excused]
        return replace(
            self,
            findings=tuple(finding for finding in self.findings if finding not in excused),
            not_compared=(*self.not_compared, *notes),
        )


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """The worst of the verdicts: `fail`, then `inconclusive`, then `pass`."""
    given = set(verdicts)
    if "fail" in given:
        return "fail"
    return "inconclusive" if "inconclusive" in given else "pass"
