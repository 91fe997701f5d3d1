"""The assertions that tests call.

Test modules import these names at collection, so heavy modules are imported inside the functions.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pytest_trainsafe.core.usage import shown as described
from pytest_trainsafe.errors import ArgumentTypeError, TrainsafeError
from pytest_trainsafe.judges.arguments import (
    require_alike,
    require_expectations,
    require_fixture,
    require_options,
    require_recorded,
    require_repeatable,
    require_repeats,
    require_sizes,
)
from pytest_trainsafe.judges.loosen import Loosen
from pytest_trainsafe.sweep.expectation import Expectation, expect_rng

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_trainsafe.core.finding import Finding
    from pytest_trainsafe.core.point import AxisValue, Point
    from pytest_trainsafe.judges.contract import Judge, Judgement, JudgeOptions
    from pytest_trainsafe.judges.learn.instrument.observation import TableObservation as Observation
    from pytest_trainsafe.judges.metamorphic.relations import Relation
    from pytest_trainsafe.judges.refine.certificate.content import Certificate
    from pytest_trainsafe.runs.traces import Traces
    from pytest_trainsafe.trace.reader import Trace

__all__ = [
    "Loosen",
    "TrainsafeFailure",
    "assert_deterministic",
    "assert_equivalent",
    "assert_invariants",
    "assert_kept_relations",
    "assert_proved_equivalent",
    "assert_refines",
    "assert_resumable",
    "assert_rng",
    "assert_same_by",
    "assert_schedule_independent",
    "assert_trainsafe",
    "expect_rng",
]


class TrainsafeFailure(TrainsafeError, AssertionError):
    """A candidate differs from its reference, or the verdict is inconclusive.

    The exception's text is the report, and `line` the finding with which it starts, in one line.
    `findings` holds the judges' Findings in dataflow order: failures and inconclusive checks.
    """

    def __init__(self, report: str, findings: Sequence[Finding] = (), line: str = "") -> None:
        super().__init__(report)
        self.findings = tuple(findings)
        self.line = line


def assert_trainsafe(
    candidate: Traces,
    reference: Traces,
    *,
    loosen: Sequence[Loosen] = (),
    accept: Collection[str] = (),
    expect: Sequence[Expectation] = (),
) -> None:
    """Asserts that the candidate trains like its reference, in every dtype that the test judges.

    Takes the fixtures `candidate_trace` and `reference_trace`.  Compares the two in one dtype after
    the other, by default from float64 down, and stops at the first dtype that fails.  Each `Loosen`
    multiplies the tolerance of some tensors.  `accept` names checks that do not fail this test if
    they are inconclusive.  `expect` has expectations of random numbers (`expect_rng`).
    Raises TrainsafeFailure with the report, GroupFailure if ranks did not finish, and
    ArgumentError for an invalid argument.
    """
    __tracebackhide__ = True
    from pytest_trainsafe.judges.first_line import first_line
    from pytest_trainsafe.judges.joint import judge_case
    from pytest_trainsafe.judges.joint_text import report_of
    from pytest_trainsafe.judges.sections import show_joint
    from pytest_trainsafe.launch import GroupFailure

    require_fixture(candidate, "candidate")
    require_fixture(reference, "reference")
    require_options("assert_trainsafe", loosen, accept)
    require_expectations("assert_trainsafe", expect)
    try:
        judgement = judge_case(candidate, reference, loosen, tuple(accept), expect)
    except GroupFailure as failure:
        # The text has the ranks' tracebacks; the traceback of the waiting code adds nothing.
        raise failure.with_traceback(None) from None
    show_joint(judgement)
    if judgement.verdict != "pass":
        raise TrainsafeFailure(report_of(judgement), judgement.findings, first_line(judgement))


def assert_equivalent(
    candidate: Trace | Path | str,
    reference: Trace | Path | str,
    *,
    perturbed: Trace | Path | str | None = None,
    shadow: Trace | Path | str | None = None,
    loosen: Sequence[Loosen] = (),
    accept: Collection[str] = (),
) -> None:
    """Asserts that two recorded Runs of one dtype are equal up to rounding.

    Takes traces or their directories.  `perturbed` is the reference with added noise of the size
    of rounding errors; `shadow` is the reference in float64.  Give both: one alone is a single
    sample of the rounding error, which is not enough where a gradient consists only of rounding
    error.  If neither is given, only bitwise equal tensors pass.
    Raises TrainsafeFailure with the report, TraceError for a trace that cannot be read, and
    ArgumentError for an invalid argument.
    """
    __tracebackhide__ = True
    from pytest_trainsafe.judges.compare.ladder.pair import judge_pair

    require_recorded(candidate, "candidate")
    require_recorded(reference, "reference")
    for measure, role in ((perturbed, "perturbed"), (shadow, "shadow")):
        if measure is not None:
            require_recorded(measure, role)
    require_options("assert_equivalent", loosen, accept)
    _require_pass(judge_pair(candidate, reference, perturbed, shadow, loosen, tuple(accept)))


def assert_proved_equivalent(
    candidate: Traces, reference: Traces, *, accept: Collection[str] = (), sizes: str = "own"
) -> None:
    """Asserts that the candidate computes the same function as its reference, without rounding.

    Takes the fixtures `candidate_trace` and `reference_trace`.  Both programs train on exact
    numbers, on the shapes, data and decisions of the test, or with sizes="small" at two
    configurations of small sizes; every recorded tensor must be equal.  A proof
    leaves a certificate.  A difference that float64 does not confirm, or an operator without
    semantics, is inconclusive.  docs/prove.md says what is proved.
    Raises TrainsafeFailure, GroupFailure if ranks did not finish, and ArgumentError.
    """
    __tracebackhide__ = True
    from pytest_trainsafe.judges.contract import JudgeOptions
    from pytest_trainsafe.judges.exact.judge import ProofJudge

    require_fixture(candidate, "candidate")
    require_fixture(reference, "reference")
    require_options("assert_proved_equivalent", (), accept)
    require_sizes(sizes)
    options = JudgeOptions(accept=frozenset(accept))
    _require_pass(_judgement_of(ProofJudge(sizes == "small"), candidate, options, reference))


def assert_rng(
    candidate: Traces | Trace | Path | str,
    reference: Traces | Trace | Path | str | None = None,
    *,
    expect: Sequence[Expectation] = (),
    accept: Collection[str] = (),
) -> None:
    """Asserts that a Run drew its random numbers as a correct parallel program does.

    Takes recorded traces, their directories, or the fixtures `candidate_trace` and
    `reference_trace`; of a fixture, the Run in the first dtype of the test is judged.  The
    reference is not judged: it shows which tensors of the candidate are shards of larger ones.
    `expect` lists results of `expect_rng`: expectations and exceptions, in addition to those of the
    marker.  `accept` names checks that do not fail this test if they are inconclusive, likewise.
    Raises TrainsafeFailure with the report, and GroupFailure if ranks did not finish.
    """
    __tracebackhide__ = True
    from pytest_trainsafe.config.checks import require_known
    from pytest_trainsafe.judges.alone import publish_failure
    from pytest_trainsafe.judges.replay.rng.ledger_rules import judge_rng
    from pytest_trainsafe.launch import GroupFailure
    from pytest_trainsafe.runs.traces import Traces

    require_expectations("assert_rng", expect)
    require_options("assert_rng", (), accept)
    accepted = {*require_known(accept)}
    require_alike(candidate, reference)
    try:
        trace = _first_rung(candidate)
        whole = None if reference is None else _first_rung(reference)
    except GroupFailure as failure:
        raise failure.with_traceback(None) from None
    declared: Sequence[Expectation] = ()
    if isinstance(candidate, Traces):
        declared = candidate.case.expect
        accepted.update(candidate.case.settings.accept)
    judgement = judge_rng(trace, whole, (*declared, *expect)).accepting(accepted)
    if isinstance(candidate, Traces):
        notes = (f"assert_rng did not compare {text}" for text in judgement.not_compared)
        candidate.runs.notes.update(dict.fromkeys(notes))
        publish_failure(judgement, candidate)
    _require_pass(judgement)


def assert_deterministic(candidate: Traces, *, repeats: int = 2) -> None:
    """Asserts that a program records the same bits every time it runs.

    Takes the fixture `candidate_trace` or `reference_trace`.  Runs the fixture's program `repeats`
    times in total, in the first dtype that the test judges; every tensor of every rank must have
    the same bits each time.  The repetitions run in new processes with another seed for string
    hashes and other initial contents of memory.  After a failure, further Runs find the operator at
    which the difference starts, and its cause, unless --trainsafe-localize is off.
    Raises TrainsafeFailure with the report, GroupFailure if ranks did not finish, and
    ArgumentError for an invalid argument.
    """
    __tracebackhide__ = True
    from pytest_trainsafe.judges.replay.determinism.judge import DeterminismJudge

    require_repeatable(
        candidate,
        "assert_deterministic",
        ". To compare two recorded traces, call assert_equivalent; without `perturbed` and "
        "`shadow` it requires equal bits",
    )
    require_repeats(repeats)
    _require_pass(_judgement_of(DeterminismJudge(repeats), candidate))


def assert_schedule_independent(candidate: Traces, *, accept: Collection[str] = ()) -> None:
    """Asserts that the results do not depend on when asynchronous collectives complete.

    Takes the fixture `candidate_trace` or `reference_trace`.  Runs its program twice, in ranks that
    share a process (the launcher `threads`), in the first dtype that the test judges: once each
    asynchronous call completes when it is issued, and once when the program waits for it.  All bits
    must be equal.  A failure names the lines that issued the call and used its buffer too early.
    Raises TrainsafeFailure with the report, GroupFailure if ranks did not finish, and
    ArgumentError for an invalid argument.
    """
    __tracebackhide__ = True
    from pytest_trainsafe.judges.contract import JudgeOptions
    from pytest_trainsafe.judges.replay.schedules.judge import ScheduleJudge

    require_repeatable(candidate, "assert_schedule_independent", " in two schedules")
    require_options("assert_schedule_independent", (), accept)
    _require_pass(_judgement_of(ScheduleJudge(), candidate, JudgeOptions((), frozenset(accept))))


def assert_invariants(
    given: Traces | Trace | Path | str | Observation,
    *packs: str,
    accept: Collection[str] = (),
) -> None:
    """Asserts that a run does not violate the invariants in packs.

    `given` is one of three things: the fixture `candidate_trace` or `reference_trace`, whose
    program then runs once more while the APIs and variables that the packs need are observed; a
    recorded trace of an observed run, or the directory of that trace; or the object that
    `observe()` yielded.  `packs` are names ("ours") or paths of .pack files.  The paths are
    relative to pytest's root directory if `given` is a fixture, and to the working directory
    otherwise.
    Raises TrainsafeFailure with the report: one finding for each cause, with a record that violates
    the invariant and one that satisfies it.  A run to which no invariant applies is inconclusive,
    which is a failure too, unless `accept` names "learn:nothing".
    """
    __tracebackhide__ = True
    from pytest_trainsafe.judges.learn.use.asserted import judge_given
    from pytest_trainsafe.launch import GroupFailure

    given_packs: tuple[object, ...] = packs
    wrong = [pack for pack in given_packs if not isinstance(pack, str)]
    if wrong or not packs:
        raise ArgumentTypeError(
            "assert_invariants needs the names of packs after its first argument, as in "
            'assert_invariants(candidate_trace, "ours"), but was given '
            f"{described(wrong[0]) if wrong else 'none'}"
        )
    require_options("assert_invariants", (), accept)
    try:
        judgement = judge_given(given, packs, accept)
    except GroupFailure as failure:
        raise failure.with_traceback(None) from None
    _require_pass(judgement)


def assert_resumable(
    candidate: Traces,
    *,
    at_step: int,
    steps: int | None = None,
    resume_point: Point | Mapping[str, AxisValue] | None = None,
    dtypes: Sequence[str] = (),
    save: Callable[..., object] | None = None,
    load: Callable[..., object] | None = None,
) -> None:
    """Asserts that a training resumed from its checkpoint goes on as if never interrupted.

    Takes the fixture `candidate_trace` or `reference_trace`, and makes three Runs in each of
    `dtypes`, by default in the first dtype that the test judges.  The first trains for `steps`
    steps.  The second saves a checkpoint after `at_step` steps.  The third loads the checkpoint in
    new processes and trains for the remaining steps.  Weights, optimizer state, random draws,
    inputs and losses must have the same bits.  The program gets `steps` from `ctx.steps`; by
    default it takes its own number of steps.
    `resume_point` gives axes that differ from those of the test's Point: the checkpoint is then
    also loaded at that other Point, where the results must be equal up to rounding.

    The program saves and loads in blocks `with ctx.save() as folder:` and `with ctx.load() as
    folder:`.  If it has no such blocks, pass the importable functions
    `save(folder, model, optimizer)` and `load(folder, model, optimizer)`: `ctx.watch` calls `load`,
    and `save` is called when the step ends.
    Raises TrainsafeFailure with the report, GroupFailure if ranks did not finish, and
    ArgumentError for an invalid argument.
    """
    __tracebackhide__ = True
    from pytest_trainsafe.judges.replay.resume.arguments import resumption_of
    from pytest_trainsafe.judges.replay.resume.judge import ResumeJudge

    resumption = resumption_of(candidate, at_step, steps, resume_point, save, load, dtypes)
    _require_pass(_judgement_of(ResumeJudge(resumption), candidate))


def assert_same_by(
    relation: Relation | str,
    candidate: Traces,
    *,
    loosen: Sequence[Loosen] = (),
    accept: Collection[str] = (),
) -> None:
    """Asserts that a program trains the same under a metamorphic relation.

    `relation` is the name of a relation that the program offers (`relations.hold`), or a relation
    such as `relations.Order()`.  Takes the fixture `candidate_trace` or `reference_trace`, and
    compares its Run with a Run that the relation has changed, in every dtype that the test judges.
    Neither Run is assumed to be correct, so this can find a bug that the program has at every
    Point, even on a single device.  `loosen` and `accept` are those of `assert_trainsafe`.
    Raises TrainsafeFailure with the report, GroupFailure if ranks did not finish, RelationError if
    the relation does not apply at the Point, and ArgumentError for an invalid argument.
    """
    __tracebackhide__ = True
    from pytest_trainsafe.judges.contract import JudgeOptions
    from pytest_trainsafe.judges.metamorphic.judge import RelationJudge
    from pytest_trainsafe.judges.metamorphic.relations.offers import find_relation

    require_repeatable(candidate, "assert_same_by", " with a change", "after the relation")
    found = find_relation(candidate.case.program, relation, "assert_same_by")
    require_options("assert_same_by", loosen, accept)
    options = JudgeOptions(loosen, frozenset(accept))
    judgement = _judgement_of(RelationJudge(found), candidate, options)
    name = described(found.name)
    notes = (f"the relation {name}, not compared: {t}" for t in judgement.not_compared)
    candidate.runs.notes.update(dict.fromkeys(notes))
    _require_pass(judgement, f"{found.name}: ")


def assert_kept_relations(
    candidate: Traces,
    file: str | os.PathLike[str],
    *,
    candidates: Sequence[Relation | str] = (),
) -> None:
    """Asserts each metamorphic relation that a file lists as valid for the program of a fixture.

    `file` is relative to pytest's root directory.  The file is written with
    `pytest --trainsafe-learn`: in such a run, a test whose marker has `healthy=True` asserts
    nothing here.  Instead, this function tries the relations that the program offers, those in
    `candidates`, and two that are known for every program: another order of the micro-batches, and
    recomputation of activations.  The function writes to the file which of these relations held.
    In all other cases, the relations that held are asserted, as by `assert_same_by`.  The terminal
    summary lists the relations that did not hold, and those that do not apply at the test's Point.
    Raises TrainsafeFailure with the report, RelationError if no relation applies at the Point, and
    ArgumentError for a file that is missing or damaged, or that does not mention the program.
    """
    __tracebackhide__ = True
    from pytest_trainsafe.judges.metamorphic.find import assert_or_find
    from pytest_trainsafe.judges.metamorphic.relations.offers import find_relations

    require_repeatable(candidate, "assert_kept_relations", " with changes")
    if not isinstance(file, (str, os.PathLike)):
        raise ArgumentTypeError(
            f"assert_kept_relations was given {described(file)} as its file; pass the path of "
            'a text file, such as "tests/relations.txt"'
        )
    given = find_relations(candidate.case.program, candidates, "assert_kept_relations")
    assert_or_find(candidate, os.fspath(file), given, assert_same_by)


def assert_refines(
    sequential: Any,
    distributed: Sequence[Any],
    relation: Mapping[str, Any] | Path | str | None = None,
    *,
    outputs: Mapping[str, str] | None = None,
    second_engine: bool = False,
) -> Certificate:
    """Asserts that the graphs of all ranks compute what the sequential graph computes.

    Takes graphs as `Graph`, the path of a file, or the text of a torch.fx graph; `distributed` has
    one for each rank.  `relation` says how the ranks' inputs make those of the sequential graph: a
    mapping with the keys of docs/refine.md, or the path of a YAML file; without it, relations are
    proposed from names and shapes.  `outputs` has the relation that each result must have; without
    it, results correspond by position and must be whole or cut.
    With `second_engine`, z3 is asked about each stage too (extra `prove`).
    Returns the certificate, which says what each engine proves.
    Raises TrainsafeFailure with the first operator that has no relation, or if nothing can be
    said; GraphError for a graph that cannot be used; InputRelationError for a wrong relation.
    """
    __tracebackhide__ = True
    from pytest_trainsafe.judges.refine.judge import judge

    judgement = judge(sequential, distributed, relation, outputs, second=second_engine)
    _require_pass(judgement)
    assert judgement.certificate is not None
    return judgement.certificate


def _judgement_of(
    judge: Judge,
    traces: Traces,
    options: JudgeOptions | None = None,
    reference: Traces | None = None,
) -> Judgement:
    """The judgement of a judge that is asked alone about the Runs of one fixture or of two."""
    __tracebackhide__ = True
    from pytest_trainsafe.judges.alone import judge_alone
    from pytest_trainsafe.launch import GroupFailure

    try:
        return judge_alone(judge, traces, options, reference)
    except GroupFailure as failure:
        raise failure.with_traceback(None) from None


def _require_pass(judgement: Judgement, before: str = "") -> None:
    """Shows a judgement on the page, and fails unless it passes; `before` begins the line."""
    __tracebackhide__ = True
    from pytest_trainsafe.judges.alone import report_alone
    from pytest_trainsafe.judges.first_line import first_line

    text = report_alone(judgement)
    if judgement.verdict != "pass":
        raise TrainsafeFailure(text, judgement.findings, before + first_line(judgement))


def _first_rung(given: Traces | Trace | Path | str) -> Trace:
    """The given trace, or the first rung's trace of a fixture."""
    from pytest_trainsafe.runs.traces import Traces
    from pytest_trainsafe.trace.reader import Trace

    given = given.at(given.case.rungs[0]) if isinstance(given, Traces) else given
    return given if isinstance(given, Trace) else Trace.open(given)
