"""The online check reports, within the step, the violations of the offline check."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from pytest_trainsafe.judges.learn.check.offline import check
from pytest_trainsafe.judges.learn.check.verifier import InvariantViolation, Verifier
from pytest_trainsafe.judges.learn.inference.learn import learn
from pytest_trainsafe.judges.learn.inference.select import confidence
from pytest_trainsafe.judges.learn.packs.pack import Pack, pack_of
from pytest_trainsafe.judges.learn.relation import Needs, Relation
from tests.support.learn.training_loops import HEALTHY, Loop, Plan, run_of

PLAN = Plan("other", steps=5)


def test_a_verifier_that_raises_stops_the_loop_in_the_step_that_breaks_a_rule(
    pack: Pack, relations: Mapping[str, Relation]
) -> None:
    loop = Loop(replace(PLAN, fault="no_update"), Verifier([pack], relations, on_violation="raise"))
    with pytest.raises(InvariantViolation) as raised:
        loop.train()
    assert loop.step == PLAN.at
    text = str(raised.value)
    assert "broken rule: every call of torch.optim." in text
    assert "updates data of some torch.nn.Parameter" in text
    assert "broken by: rank 0, step 3, optimizer: torch.optim." in text
    assert "kept by: rank 0, step 2" in text
    assert "evidence: kept " in text


@pytest.mark.parametrize("fault", ["", "frozen", "no_zero_grad"])
def test_the_verifier_collects_the_violations_that_the_offline_check_reports(
    fault: str, pack: Pack, relations: Mapping[str, Relation]
) -> None:
    plan = replace(PLAN, fault=fault)
    verifier = Verifier([pack], relations)
    Loop(plan, verifier).train()
    found = check(run_of(plan), [pack], relations).violations
    online = [(each.invariant.id, each.quoted, each.kept) for each in verifier.violations]
    assert sorted(online) == sorted((each.invariant.id, each.quoted, each.kept) for each in found)
    assert bool(online) == bool(fault)


def test_calls_in_a_context_without_learned_examples_are_listed_as_not_checked(
    pack: Pack, relations: Mapping[str, Relation]
) -> None:
    plan = replace(PLAN, autocast="torch.float16", fault="truncated")
    found = check(run_of(plan), [pack], relations)
    assert "torch.nn.Linear.forward" not in {
        each.invariant.claim["api"]
        for each in found.violations
        if each.record.meta["phase"] == "forward"
    }
    away = {each.id for each in found.not_checked.outside}
    assert away
    assert any(
        "contexts in which the packs were not learned" in text
        for text in found.not_checked.sentences()
    )


def test_each_invariant_of_a_pack_is_either_triggered_or_listed_once_as_not_checked(
    pack: Pack, relations: Mapping[str, Relation]
) -> None:
    found = check(run_of(replace(PLAN, clip=False)), [pack], relations)
    listed = found.not_checked
    every = [*listed.untriggered, *listed.outside, *listed.unsure, *listed.ranks]
    every += [invariant for invariant, _ in listed.lacking]
    names = sorted([each.id for each in every] + list(found.triggered))
    assert names == sorted(each.id for each in pack.invariants)
    assert any("clip_grad_norm_" in str(each.claim) for each in listed.untriggered)


def test_a_pack_of_one_program_is_enforced_on_that_program_and_not_on_another(
    relations: Mapping[str, Relation],
) -> None:
    """The examples of one program are good evidence for it, and weak evidence for others."""
    own = pack_of("own", learn([run_of(HEALTHY["mlp"])]))
    fault = replace(HEALTHY["mlp"], fault="write_outside")
    assert check(run_of(fault), [own], relations).violations
    another = replace(fault, program="another")
    assert not check(run_of(another), [own], relations).violations
    rule = next(each for each in own.invariants if each.claim.relation == "within")
    relation = relations["within"]
    assert confidence(rule, relation) < 0.75 < confidence(rule, relation, "mlp")


def test_a_rule_is_enforced_in_a_new_configuration_once_seven_configurations_support_it(
    relations: Mapping[str, Relation],
) -> None:
    """The examples of one configuration say little about another one."""
    healthy, fault = run_of(HEALTHY["mlp"]), run_of(replace(HEALTHY["mlp"], fault="write_outside"))
    runs = [replace(healthy, setting=f"width {width}") for width in range(7)]
    of_one, of_six, of_seven = (pack_of("own", learn(runs[:count])) for count in (1, 6, 7))

    same, other = replace(fault, setting="width 0"), replace(fault, setting="width 9")
    assert check(same, [of_one], relations).violations
    assert not check(other, [of_one], relations).violations
    assert not check(other, [of_six], relations).violations
    assert check(other, [of_seven], relations).violations


def test_needs_of_a_relation_name_the_apis_and_variables_of_its_claims(
    pack: Pack, relations: Mapping[str, Relation]
) -> None:
    needs = Needs()
    for each in pack.invariants:
        needs |= relations[each.claim.relation].needs(each.claim)
    assert {"torch.optim.*.step", "torch.Tensor.backward"} <= needs.apis
    assert ("torch.nn.Parameter", "grad") in needs.variables
    for each in pack.invariants:
        own = relations[each.claim.relation].needs(each.claim)
        assert {each.claim.text(name) for name in ("api", "inner")} - {""} <= own.apis
