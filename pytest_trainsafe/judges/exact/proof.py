"""Proves that a parallel program computes what its reference computes, or refutes it.

The comparison is that of the compare judge, at the rung `exact`: its alignment, patterns and guards
serve exact numbers through their arithmetic.  A proof needs more Runs, with other random residues;
a refutation needs float64 to confirm it, because some equal functions differ on exact numbers
(`arithmetic/residues.py`).  The code at fault is found in float64, in whose Runs random values can
replace the tensors between modules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from msgspec import structs

from pytest_trainsafe.arithmetic import ExactError
from pytest_trainsafe.arithmetic.packing import error_bound
from pytest_trainsafe.core.finding import Finding
from pytest_trainsafe.core.rungs.table import WIDEST
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.judges.compare.fault.clause import Clause, words
from pytest_trainsafe.judges.compare.fault.located import Located
from pytest_trainsafe.judges.compare.judgement import LadderJudgement, lead_of, suspect
from pytest_trainsafe.judges.compare.ladder.known_axis import with_known_axis
from pytest_trainsafe.judges.compare.ladder.ladder import climb
from pytest_trainsafe.judges.compare.ladder.look_first import look_first
from pytest_trainsafe.judges.contract import FindingsJudgement, JudgeOptions
from pytest_trainsafe.judges.exact import JUDGE, RUNG
from pytest_trainsafe.judges.exact.certificate import Certificate
from pytest_trainsafe.judges.exact.certify import certified, met_by
from pytest_trainsafe.judges.exact.shapes import reduced, sizes_of
from pytest_trainsafe.launch import GroupFailure
from pytest_trainsafe.runs.traces import Runs
from pytest_trainsafe.sweep.case import Case
from pytest_trainsafe.sweep.point_summary import PointSummary

#: The largest probability of a missed difference that counts as a proof.
MOST = 1e-9

#: What the summary says of Points with a proof, whose row is that of a comparison.
PROVED = (
    "proved: at each point that passes with dtype=exact, the program computes what its reference "
    "computes, on numbers without rounding"
)

#: The most seeds that are tried.
MOST_SEEDS = 8

#: What a program may do that exact numbers cannot: the errors of `arithmetic/errors.py`.
_NOT_COVERED = frozenset({"ExactError", *(each.__name__ for each in ExactError.__subclasses__())})


@dataclass(frozen=True, slots=True)
class ProofJudgement(FindingsJudgement):
    """The judgement on exact numbers; `point` is the test's.

    `compared` is the comparison on exact numbers, None if there is none; `confirmed` says that
    float64 refutes the equality too.  `error` bounds the probability of a missed difference.
    `certificate` is that of a proof.
    """

    compared: LadderJudgement | None = None
    confirmed: bool = False
    error: float = 1.0
    certificate: Certificate | None = None
    point: str = ""
    panels: ClassVar[str] = "pytest_trainsafe.judges.exact.panels"
    text: ClassVar[str] = "pytest_trainsafe.judges.exact.text"

    @property
    def summary(self) -> PointSummary:
        """The Point's entry in the summary: that of the comparison, with this verdict."""
        own: PointSummary = {"point": self.point, "verdict": self.verdict}
        if self.compared is not None:
            own = self.compared.summary | own
        if self.verdict == "inconclusive":
            own["reason"] = self.findings[0].message
        if self.certificate is not None:
            own["notes"] = [*own.get("notes", ()), PROVED]
        return own


def proof_of(
    case: Case,
    runs: Runs,
    options: JudgeOptions,
    samples: Sequence[int] = range(MOST_SEEDS),
    own_sizes: Mapping[str, int] | None = None,
    least: int = 1,
) -> ProofJudgement:
    """The judgement on the Runs of a test; `samples` are the random residues, as many as needed,
    and at least `least`.

    `own_sizes` are the test's, if those of `case` stand for them.
    """
    proof = _Proof(case, runs, options, samples, own_sizes or {}, least)
    try:
        compared = proof.compared(RUNG, samples[0])
    except GroupFailure as failure:
        return proof.not_covered(failure)
    return proof.not_equal(compared) or proof.proved(compared)


def small_proofs(case: Case, runs: Runs, options: JudgeOptions) -> list[ProofJudgement]:
    """The judgements at two configurations of small sizes, up to the first that is no proof.

    Raises ArgumentError if there are no such sizes.
    """
    found: list[ProofJudgement] = []
    for sizes, small in reduced(case):
        at = Runs(*(replace(each, case=small) for each in (runs.candidate, runs.reference)))
        judgement = proof_of(small, at, options, own_sizes=sizes_of(case))
        words = " ".join(f"{name}={size}" for name, size in sizes.items())
        found.append(replace(judgement, what=f"{judgement.what} with {words}"))
        if judgement.certificate is None:
            break
    return found


def explained(
    case: Case, runs: Runs, options: JudgeOptions, lead: Finding
) -> FindingsJudgement | None:
    """What exact numbers say of the tensor that is wrong first at another rung, `lead`.

    They show a factor or a sum without rounding; or that the two sides compute the same function,
    and so differ by what exact numbers do not have.  The place is that of `lead`, which is known
    better.  None if the program does not run on them.
    """
    try:
        compared = _Proof(case, runs, options, (), {}).compared(RUNG)
    except GroupFailure:
        return None
    if compared.verdict == "pass":
        text = (
            "on exact numbers the two sides compute the same function, so they differ by rounding, "
            "a cast to another dtype, random numbers, or the moment at which an asynchronous "
            "collective completes"
        )
        same = Finding(
            verdict="pass", judge=JUDGE, check=JUDGE, message=text, where=lead.where, dtype=RUNG
        )
        return FindingsJudgement(JUDGE, [same])
    failing = (each for each in compared.findings if each.verdict == "fail")
    found = [each for each in failing if each.where == lead.where]
    if not found:
        return None
    placeless = structs.replace(lead_of(found), source="", user="", module_class="")
    return FindingsJudgement(JUDGE, [placeless])


@dataclass(slots=True)
class _Proof:
    """One test: the Case, its Runs, what was passed to the assertion, and its sizes if reduced."""

    case: Case
    runs: Runs
    options: JudgeOptions
    samples: Sequence[int]
    own_sizes: Mapping[str, int]
    least: int = 1
    what: str = field(init=False)

    def __post_init__(self) -> None:
        self.what = f"{self.case.program.path} at {self.case.point.without('dtype')}"

    def compared(self, rung: str, sample: int = 0, localize: float = 0.0) -> LadderJudgement:
        """The comparison at one rung alone; `sample` numbers its random residues.

        The code at fault is searched for `localize` seconds.
        """
        settings = self.case.settings._replace(dtypes=(rung,), localize=localize)
        case = replace(self.case, settings=settings)
        candidate, reference = (
            replace(each, case=case, sample=sample)
            for each in (self.runs.candidate, self.runs.reference)
        )
        return climb(candidate, reference, (), tuple(self.options.accept))

    def judgement(
        self, findings: Sequence[Finding], compared: LadderJudgement | None = None
    ) -> ProofJudgement:
        notes = compared.not_compared if compared is not None else ()
        point = str(self.case.point)
        made = ProofJudgement(JUDGE, findings, notes, compared, point=point, what=self.what)
        return made.accepting(self.options.accept)

    def not_covered(self, failure: GroupFailure) -> ProofJudgement:
        """The judgement if ranks failed because of exact numbers; others are raised."""
        first = next((r for r in failure.result.ranks if r.error_type in _NOT_COVERED), None)
        if first is None:
            raise failure
        return self.judgement([_doubt("exact:semantics", first.error)])

    def not_equal(self, compared: LadderJudgement) -> ProofJudgement | None:
        """The judgement if a comparison on exact numbers does not pass; None if it does."""
        if compared.verdict == "fail":
            return self.refuted(compared)
        if compared.verdict == "inconclusive":
            return self.judgement(compared.findings, compared)
        return None

    def refuted(self, compared: LadderJudgement) -> ProofJudgement:
        """The judgement if exact numbers differ: a failure if float64 confirms it.

        If annotations that are missing explain all of float64's failure, it is the judgement.
        """
        try:
            widest = self.compared(WIDEST, localize=self.case.settings.localize)
        except GroupFailure:
            widest = None
        if widest is not None and only_lacks_annotations(widest):
            return self.judgement(widest.findings, widest)
        if widest is not None and widest.verdict == "fail":
            found = _localised(compared, widest)
            return replace(self.judgement(found.findings, found), confirmed=True)
        lead = next(f for f in compared.findings if f.verdict == "fail")
        where = f"{lead.where.path} ({lead.where.kind})" if lead.where is not None else lead.check
        text = (
            f"exact numbers differ first at {where}, and {WIDEST} agrees up to rounding; either "
            "the two sides use an identity that exact numbers do not know (docs/prove.md lists "
            "those that they know), or the difference is below the rounding of float64, or a "
            "result of an asynchronous collective is read before its wait, which "
            "assert_schedule_independent tells"
        )
        doubt = _doubt("exact:unconfirmed", text, lead.where)
        return replace(self.judgement([doubt], compared), compared=None)

    def proved(self, compared: LadderJudgement) -> ProofJudgement:
        """The judgement if exact numbers agree, once enough seeds agree, with its certificate."""
        candidate, reference = (
            replace(each, sample=self.samples[0]).at(RUNG)
            for each in (self.runs.candidate, self.runs.reference)
        )
        met = [met_by(each) for each in (candidate, reference)]
        hashed, degree = sum(each.hashed for each in met), sum(each.multiplications for each in met)
        counts = range(self.least, len(self.samples) + 1)
        bounds = ((each, error_bound(degree, hashed, each)) for each in counts)
        needed, error = next((each for each in bounds if each[1] <= MOST), (0, 1.0))
        if not needed:
            text = (
                f"the Runs compute {degree} products and functions and hash {hashed} values, too "
                f"many for a bound of {MOST:.0e}"
            )
            return self.judgement([_doubt("exact:error", text)], compared)
        for sample in self.samples[1:needed]:
            found = self.not_equal(self.compared(RUNG, sample))
            if found is not None:
                return found
        made = certified(
            candidate,
            reference,
            [each.spec(RUNG) for each in (self.runs.candidate, self.runs.reference)],
            seeds=self.samples[:needed],
            hashed=hashed,
            multiplications=degree,
            error=error,
            accept=self.options.accept,
            not_covered=compared.not_compared,
            own_sizes=self.own_sizes,
        )
        return replace(self.judgement([], compared), error=error, certificate=made)


def only_lacks_annotations(compared: LadderJudgement) -> bool:
    """Whether a comparison fails, and annotations that are missing explain all of it."""
    last = compared.rungs[-1]
    return compared.verdict == "fail" and last.missing is not None and last.rest is None


def _localised(exact: LadderJudgement, widest: LadderJudgement) -> LadderJudgement:
    """The comparison `exact` with the code at fault that `widest`, the same in float64, found.

    Patterns and factors stay those of exact numbers.  A line that no second Run has shown, because
    nothing was searched or found, is called a guess.
    """
    failed, found = exact.rungs[-1], widest.located or Located(())
    failing = [each for each in exact.findings if each.verdict == "fail"]
    if failed.explained:  # by annotations, at a known line
        return exact
    if not found.rows or found.rows[0][0] == "not localised":
        lead = lead_of(failing)
        own, *others = found.clauses if found.source else (Clause(suspect(lead)),)
        guess = own.begun("a guess, because the failure is not localised: ")
        found = replace(found, source=found.source or lead.source, clauses=(guess, *others))
    for each in filter(None, (failed, failed.rest)):
        with_known_axis(each.comparison, found)
    summary = exact.summary.copy()
    summary.pop("look_at", None)
    if "localize" in widest.summary.get("seconds", {}):
        seconds = {"localize": widest.summary["seconds"]["localize"]}
        summary["seconds"] = {**summary.get("seconds", {}), **seconds}
    if found.source:
        source, what = look_first(found, failing)
        summary["look_at"] = {"source": source, "what": words(what)}
    if "facts" in widest.summary:
        summary["facts"] = widest.summary["facts"]
    if found.faults:
        summary["faults"] = list(found.faults)
    return replace(exact, located=found, summary=summary)


def _doubt(check: str, message: str, where: TensorId | None = None) -> Finding:
    return Finding(
        verdict="inconclusive", judge=JUDGE, check=check, message=message, where=where, dtype=RUNG
    )
