"""Violations with a common cause are joined into one block."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace

import pytest

from pytest_trainsafe.core.finding import CallSubject
from pytest_trainsafe.judges.learn.check.applicable import exists
from pytest_trainsafe.judges.learn.check.cluster import clusters
from pytest_trainsafe.judges.learn.check.findings import findings_of
from pytest_trainsafe.judges.learn.check.offline import check
from pytest_trainsafe.judges.learn.invariant import Support
from pytest_trainsafe.judges.learn.packs.pack import Pack
from pytest_trainsafe.judges.learn.relation import Relation
from tests.support.learn.faults import FAULTS, OTHER
from tests.support.learn.training_loops import LEARNED, Plan, run_of


@pytest.mark.parametrize("fault", [each[0] for each in FAULTS if each[0] != "write_outside"])
def test_all_violations_of_a_fault_are_one_block_that_starts_in_its_first_step(
    fault: str, pack: Pack, relations: Mapping[str, Relation]
) -> None:
    found = check(run_of(replace(OTHER, fault=fault)), [pack], relations)
    causes = clusters(found.violations, relations)
    assert len(causes) == 1
    assert 1 + len(causes[0].others) == len(found.violations)
    assert causes[0].lead.step == OTHER.at


def test_two_faults_in_different_steps_are_two_blocks(
    pack: Pack, relations: Mapping[str, Relation]
) -> None:
    first = check(run_of(replace(OTHER, fault="stale_optimizer", at=1)), [pack], relations)
    later = check(run_of(replace(OTHER, fault="not_finite", at=3)), [pack], relations)
    causes = clusters([*first.violations, *later.violations], relations)
    assert [each.lead.invariant.claim.relation for each in causes] == ["membership", "output"]


def test_a_finding_has_the_relation_the_call_and_the_evidence(
    pack: Pack, relations: Mapping[str, Relation]
) -> None:
    found = check(run_of(replace(OTHER, fault="truncated")), [pack], relations)
    [finding] = findings_of(clusters(found.violations, relations), relations)
    assert (finding.verdict, finding.judge, finding.check) == ("fail", "learn", "learn:output")
    assert finding.subject == CallSubject("torch.nn.Linear.forward")
    assert "bfloat16 1x4" in finding.message
    evidence = dict(finding.evidence)
    assert evidence["step"] == 3
    assert evidence["programs"] == 8


def test_exists_recognises_missing_packages_and_missing_torch_apis() -> None:
    import torch  # noqa: F401

    assert exists("torch.optim.Adam.step")
    assert exists("torch.optim.*.step")
    assert exists("wsgiref.simple_server.anything")  # answered without importing the package
    assert "wsgiref" not in sys.modules
    assert not exists("package_that_is_not_installed.anything")
    assert not exists("torch.optim.Adamant.step")
    assert not exists("torch.nn.Linear.backward_twice")


def test_a_call_that_is_forgotten_leads_before_values_that_differ_in_the_same_step(
    pack: Pack, ranks_pack: Pack, relations: Mapping[str, Relation]
) -> None:
    plan = Plan("d1", dp=2, tp=2, steps=6, evaluate=False, fault="drift")
    drift = check(run_of(plan), [ranks_pack], relations).violations[0]
    late = replace(OTHER, fault="no_zero_grad")
    forgotten = next(
        each
        for each in check(run_of(late), [pack], relations).violations
        if each.invariant.claim.relation in ("sequence", "renewed")
    )
    often = replace(drift.invariant, support=(Support("d1", (("", 10**6),)),) * 9)
    forgotten.step, drift.step = 3, 3
    drift.invariant, drift.order = often, -1
    assert relations[drift.invariant.claim.relation].several
    [alone] = clusters([drift], relations)
    assert alone.lead is drift
    [both] = clusters([drift, forgotten], relations)
    assert both.lead is forgotten


def test_the_first_line_of_a_forgotten_call_says_how_often_it_was_called(
    pack: Pack, relations: Mapping[str, Relation]
) -> None:
    plan = replace(LEARNED["mlp"], fault="no_zero_grad")
    found = check(run_of(plan), [pack], relations)
    violation = next(each for each in found.violations if each.detail == "called 0 times")
    finding = findings_of(clusters([violation], relations), relations)[0]
    line = finding.message.partition("\n")[0]
    assert "zero_grad is called exactly once" in line
    assert line.endswith(": called 0 times")
    assert dict(finding.evidence)["rule"] == line.removesuffix(": called 0 times")
