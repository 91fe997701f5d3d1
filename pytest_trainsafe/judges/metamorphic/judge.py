"""Judges whether a program trains the same under a metamorphic relation.

The compare judge compares two Runs, rung by rung.  The unchanged Run takes the place of the
reference: rounding is measured on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from msgspec import structs

from pytest_trainsafe.config.checks import is_accepted
from pytest_trainsafe.core.finding import Finding
from pytest_trainsafe.core.rungs.table import rung_named
from pytest_trainsafe.core.usage import shown
from pytest_trainsafe.errors import ArgumentError, RelationError
from pytest_trainsafe.judges.compare.fault.clause import words
from pytest_trainsafe.judges.compare.judgement import LadderJudgement, RungJudgement
from pytest_trainsafe.judges.compare.ladder.ladder import climb
from pytest_trainsafe.judges.compare.ladder.look_first import look_first
from pytest_trainsafe.judges.contract import FindingsJudgement, JudgeOptions
from pytest_trainsafe.judges.loosen import Loosen
from pytest_trainsafe.judges.metamorphic.change import changed, setting_of, unseen
from pytest_trainsafe.judges.metamorphic.relations.relation import Change, Relation, Setting, View
from pytest_trainsafe.judges.metamorphic.translate import TranslatedTrace, shapes_of, translated
from pytest_trainsafe.judges.metamorphic.varied import VariedTraces, Vary
from pytest_trainsafe.judges.replay.determinism.divergence import first_divergence
from pytest_trainsafe.launch import GroupFailure
from pytest_trainsafe.runs.specs import Role
from pytest_trainsafe.runs.traces import Runs, Traces
from pytest_trainsafe.sweep.case import Case
from pytest_trainsafe.trace.reader import Trace
from pytest_trainsafe.trace.run_spec import RunSpec

#: How the report names the Run that the changed one was compared with.
UNCHANGED = "the unchanged Run"

JUDGE = "relation"


@dataclass(frozen=True, slots=True)
class RelationJudgement(FindingsJudgement):
    """The Judgement on one relation.  `compared` is the Judgement on the comparison alone.

    `changes` is a text such as `batch=8 instead of batch=4`.  `draws` is whether the steps of the
    unchanged Run drew from torch's default random generators.
    """

    compared: LadderJudgement | None = None
    relation: Relation | None = None
    setting: Setting | None = None
    changes: str = ""
    draws: bool = False
    panels: ClassVar[str] = "pytest_trainsafe.judges.metamorphic.panels"
    text: ClassVar[str] = "pytest_trainsafe.judges.metamorphic.text"

    @property
    def look_at(self) -> tuple[str, str]:
        """The line to look at first and what it is, as the comparison has it; "" if unknown."""
        if self.compared is None or self.compared.verdict != "fail":
            return "", ""
        last = self.compared.rungs[-1]
        failing = [each for each in last.comparison.findings if each.verdict == "fail"]
        source, what = look_first(self.compared.located, failing, last.explained)
        return source, words(what)


@dataclass(frozen=True, slots=True)
class RelationJudge:
    """Judges whether a fixture's program trains the same under a metamorphic relation."""

    relation: Relation
    name = JUDGE

    def required_runs(self, case: Case) -> Sequence[RunSpec]:
        """Nothing: the Runs depend on the fixture, not on the Case alone."""
        return []

    def judge(self, case: Case, runs: Runs, options: JudgeOptions) -> RelationJudgement:
        """Compares the fixture's Run with the one that the relation changes."""
        accept = tuple(options.accept)
        return judge_relation(runs.candidate, self.relation, options.loosen, accept)


def judge_relation(
    traces: Traces, relation: Relation, loosen: Sequence[Loosen], accept: Sequence[str]
) -> RelationJudgement:
    """Judge a relation on the Runs of a fixture.

    Raises ArgumentError for a relation that must be corrected, for example because it names an
    argument that the program does not have.  Raises RelationError for a valid relation that does
    not apply to the program at its Point, and GroupFailure if the ranks of a Run do not finish.
    """
    pair = _Pair(traces, relation)
    base, other, notes = pair.prepared()
    compared = climb(other, base, loosen, accept)
    compared = replace(compared, rungs=[_in_words_of(relation, each) for each in compared.rungs])
    dtypes = [rung.dtype for rung in compared.rungs]
    recorded = [(Traces.at(base, dtype), Traces.at(other, dtype)) for dtype in dtypes]
    findings: list[Finding] = []
    if compared.verdict != "fail":
        findings += _without_effect(*recorded[0], relation)
    if compared.verdict == "pass" and relation.exact:
        findings += [each for pair_of in recorded for each in _unequal_bits(*pair_of)]
    accepted = (*accept, *traces.case.settings.accept)
    first = recorded[0][0]
    return RelationJudgement(
        JUDGE,
        [
            *(f for f in findings if f.verdict == "fail" or not is_accepted(f.check, accepted)),
            *compared.findings,
        ],
        [*notes, *_left_out(base.at(dtypes[0]), other.at(dtypes[0]))],
        compared,
        relation,
        pair.setting,
        _in_place(pair.change, pair.setting),
        any(step.rng_before != step.rng_after for rank in first.ranks for step in rank.steps),
    )


class _Pair:
    """The unchanged and the changed Run that a metamorphic relation compares."""

    def __init__(self, traces: Traces, relation: Relation) -> None:
        self.traces, self.relation = traces, relation
        # All copies of a fixture share its Runs.  If it records sketches, this is a Run of its own.
        self.base = self._varied("reference", _watching)
        self.setting = setting_of(traces, self._first(self.base))
        why = None if relation.unless is None else relation.unless(self.setting)
        if why is not None:
            raise RelationError(
                f"the relation {shown(relation.name)} is not tested, because it need not hold for "
                f"{self.setting.program} at {self.setting.point}: {why}. Use another relation"
            )
        self.change: Change = relation.change(self.setting)
        self.views: tuple[View | None, View | None] = relation.views(self.setting)
        if relation.exact and any(self.views):
            raise ArgumentError(
                f"the relation {shown(relation.name)} cannot be exact: it compares tensors that "
                "are computed from recorded ones, so their bits may differ; leave out exact=True"
            )

    def prepared(self) -> tuple[VariedTraces, VariedTraces, list[str]]:
        """The Traces of the unchanged and the changed Run, and notes on what is not compared."""
        case, notes = self.traces.case, list[str]()
        settings = case.settings
        if any(self.views):
            # Rewriting values between modules needs the same tensors in both Runs.
            settings = settings._replace(localize=0.0)
            first = self._first(self.base)
            widest = first.manifest.dtype
            decides = any(id.kind == "decision" for id in first.ids())
            if decides and not rung_named(widest).replays:
                left = [dtype for dtype in case.rungs if dtype != widest]
                settings = settings._replace(dtypes=(widest,))
                if left:
                    notes.append(
                        f"{' and '.join(left)}: rounding can change what the program chooses "
                        "(top-k), and the other Run's choices cannot be replayed, because they may "
                        "have another shape"
                    )
        case = replace(case, settings=settings)
        base = replace(self.base, case=case)
        other = self._varied("candidate", self._change)
        other = replace(other, case=case)
        for mine, theirs, view in ((base, other, self.views[0]), (other, base, self.views[1])):
            _show(mine, theirs, view, self.relation)
        return base, other, notes

    def _change(self, spec: RunSpec) -> RunSpec:
        return changed(self.traces, spec, self.change, self.relation)

    def _varied(self, role: Role, vary: Vary) -> VariedTraces:
        traces = self.traces
        return VariedTraces(
            traces.case,
            role,
            traces.runs,
            "full",
            repeat=traces.repeat,
            owner=traces,
            vary=vary,
        )

    def _first(self, base: VariedTraces) -> Trace:
        """The Trace in the first dtype of the ladder in which the program runs."""
        *others, last = base.case.rungs
        for dtype in others:
            try:
                return Traces.at(base, dtype)
            except GroupFailure:
                continue
        return Traces.at(base, last)


def _watching(spec: RunSpec) -> RunSpec:
    """A copy of `spec` in which casts are recorded, as they decide how much rounding is allowed."""
    return structs.replace(spec, watch_casts=True)


def _show(mine: VariedTraces, theirs: VariedTraces, view: View | None, relation: Relation) -> None:
    if view is None and not relation.ignore:
        return

    def show(trace: Trace, dtype: str) -> Trace:
        like = {} if view is None else shapes_of(Traces.at(theirs, dtype))
        return translated(trace, view, like, relation)

    mine.show = show


def _in_words_of(relation: Relation, rung: RungJudgement) -> RungJudgement:
    """A judged rung whose report speaks of the relation, not of a reference on one device."""
    findings = [
        each
        if each.pattern is None
        else structs.replace(each, pattern=relation.explain(each.pattern))
        for each in rung.comparison.findings
    ]
    comparison = replace(rung.comparison, findings=findings)
    return replace(rung, reference=UNCHANGED, comparison=comparison)


def _in_place(change: Change, setting: Setting) -> str:
    """A text that names the changed values and the old ones: `batch=8 instead of batch=4`."""
    axes = {**dict(setting.point), **setting.arguments}
    before = [f"{name}={axes[name]}" for name in change.values if name in axes]
    return f"{change} instead of {' '.join(before)}" if before else str(change)


def _without_effect(first: Trace, second: Trace, relation: Relation) -> list[Finding]:
    """A finding if the change has no effect on the recorded tensors; an empty list if it has one.

    `first` and `second` are the traces of the two Runs as they were recorded.
    """
    why = unseen(first, second, relation)
    dtype = first.manifest.dtype
    if not why:
        return []
    return [
        Finding(
            verdict="inconclusive", judge=JUDGE, check="relation:effect", message=why, dtype=dtype
        )
    ]


def _unequal_bits(first: Trace, second: Trace) -> list[Finding]:
    """A finding if the Runs of an exact relation, which agree up to rounding, differ in bits."""
    apart = first_divergence(first, second)
    if apart is None:
        return []
    return [
        Finding(
            verdict="fail",
            judge=JUDGE,
            check="relation:bits",
            message=(
                f"the relation is exact, but {apart.differing} of {apart.total} recorded tensors "
                "differ in bits; the Runs agree only up to rounding"
            ),
            where=apart.where,
            subject=apart.subject,
            dtype=first.manifest.dtype,
        )
    ]


def _left_out(*traces: Trace) -> list[str]:
    """Sentences on the tensors that the relation left out, one for each kind of tensor."""
    count: dict[str, int] = {}
    for trace in traces:
        if isinstance(trace, TranslatedTrace):
            for id in trace.left_out:
                count[id.kind] = count.get(id.kind, 0) + 1
    return [
        f"{number} tensors of kind {kind}, which have no counterpart in the other Run"
        for kind, number in sorted(count.items())
    ]
