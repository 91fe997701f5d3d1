"""Checks packs of invariants on an observed run.  Called by the learn judge and the assertions."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

from pytest_trainsafe.config.checks import is_accepted
from pytest_trainsafe.core.finding import Finding
from pytest_trainsafe.judges.contract import FindingsJudgement
from pytest_trainsafe.judges.learn import JUDGE
from pytest_trainsafe.judges.learn.check.cluster import clusters
from pytest_trainsafe.judges.learn.check.findings import Places, findings_of
from pytest_trainsafe.judges.learn.check.offline import check
from pytest_trainsafe.judges.learn.events.file import SlipPlace, UnseenCalls, observed
from pytest_trainsafe.judges.learn.fields import MAX_TEXT
from pytest_trainsafe.judges.learn.packs.pack import Pack
from pytest_trainsafe.judges.learn.relation import Relation
from pytest_trainsafe.judges.learn.run import ObservedRun
from pytest_trainsafe.sweep.point_summary import plural
from pytest_trainsafe.trace.reader import Trace
from pytest_trainsafe.trace.run_spec import RunSpec

#: The most causes of one test that are kept for the summary of a whole suite.
_REPORTED = 20


def judge_trace(
    trace: Trace,
    packs: Sequence[Pack],
    known: Mapping[str, Relation],
    accept: Collection[str],
    suite: bool = False,
) -> FindingsJudgement:
    """Check packs on what the ranks of a trace observed, as `judge_packs` does."""
    run, unseen, places = observed_run(trace), _unseen(trace), _places(trace)
    return judge_packs(run, packs, known, accept=accept, unseen=unseen, places=places, suite=suite)


def judge_packs(
    run: ObservedRun,
    packs: Sequence[Pack],
    known: Mapping[str, Relation],
    *,
    accept: Collection[str] = (),
    unseen: Sequence[str] = (),
    places: Places = MappingProxyType({}),
    suite: bool = False,
) -> FindingsJudgement:
    """Check packs on an observed run.

    `known` maps names to relations (the forms of invariants).  If no invariant applies to the run,
    the judgement has an inconclusive Finding of the check "learn:nothing".  This Finding is left
    out if `accept` contains "learn:nothing".  If the packs are those of the whole test run
    (`suite`), and not of this test, it is a note: few packs apply to every test of a suite.
    `unseen` has sentences on what could not be observed; they become notes of the judgement.
    `places` says where slips happened in the project's code.
    """
    checked = check(run, packs, known)
    findings = list(findings_of(clusters(checked.violations, known), known, places))
    nothing = []
    if not checked.triggered and suite:
        nothing.append(f"not checked: {_nothing(packs)}")
    elif not checked.triggered and not is_accepted(f"{JUDGE}:nothing", accept):
        check_name = f"{JUDGE}:nothing"
        advice = f"{_nothing(packs)}. Use packs that were learned from programs of the same kind"
        findings.append(
            Finding(verdict="inconclusive", judge=JUDGE, check=check_name, message=advice)
        )
    notes = [
        *nothing,
        *kept_text(packs, run.setting, checked.triggered, checked.broken),
        *checked.not_checked.sentences(),
        *(f"not observed: {each}" for each in unseen),
    ]
    return FindingsJudgement(JUDGE, findings, notes)


def reported(judgement: FindingsJudgement) -> str:
    """The broken rules of a judgement as JSON: pairs of a rule and the record that breaks it."""
    pairs = [
        [str(dict(finding.evidence).get(name, "")) for name in ("rule", "broken by")]
        for finding in judgement.findings
        if finding.verdict == "fail"
    ]
    return json.dumps(pairs[:_REPORTED])


def observed_run(trace: Trace) -> ObservedRun:
    """The observed run of a trace: the table of each rank, the program and its versions."""
    manifest = trace.manifest
    tables = [observed(trace, rank) for rank in range(len(trace.ranks))]
    return ObservedRun(manifest.program, tables, manifest.versions, setting_of(manifest.spec))


def setting_of(spec: RunSpec) -> str:
    """The configuration of a Run as a text: its Point, dtype and seed, and the program's arguments.

    Arguments that are too long for a pack are replaced by a hash of them.
    """
    head = f"{spec.point}, {spec.dtype}, seed {spec.seed}"
    arguments = () if spec.arguments == "{}" else (spec.arguments,)
    text = ", ".join((head, *spec.script_args, *arguments))
    if len(text) <= MAX_TEXT:
        return text
    digest = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    return f"{head[: MAX_TEXT // 2]}, arguments {digest}"


def _unseen(trace: Trace) -> list[str]:
    """Sentences on what the ranks should have observed but could not."""
    return list(
        dict.fromkeys(each.what for rank in trace.ranks for each in rank.events_of(UnseenCalls))
    )


def _places(trace: Trace) -> Places:
    return {
        (rank.rank, each.text): each.place
        for rank in trace.ranks
        for each in rank.events_of(SlipPlace)
    }


def kept_text(
    packs: Sequence[Pack], setting: str, judged: Mapping[str, int], broken: Mapping[str, int]
) -> list[str]:
    """How many invariants were checked and kept, as a note on a Point; none if none was checked.

    Without it, a pass says only what was not checked.
    """
    if not judged:
        return []
    names = ", ".join(pack.name for pack in packs)
    every = len({each.claim for pack in packs for each in pack.invariants})
    kept = len(judged.keys() - broken.keys())
    checked = f"{plural(len(judged), 'invariant')} that applied"
    at = f", at {setting.partition(', ')[0]}" if setting else ""
    return [f"kept: {kept} of {checked}; there are {every} in {names}{at}"]


def _nothing(packs: Sequence[Pack]) -> str:
    names = ", ".join(pack.name for pack in packs)
    count = sum(len(pack.invariants) for pack in packs)
    return f"none of the {count} invariants of {names} applied to this run, so nothing was checked"
