"""Each relation reports a planted violation in the step that breaks it, and no other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch

from pytest_trainsafe.judges.learn.check.offline import check
from pytest_trainsafe.judges.learn.check.verifier import CONFIDENCE, message
from pytest_trainsafe.judges.learn.columns.entries import owner_of
from pytest_trainsafe.judges.learn.columns.frame import Frame
from pytest_trainsafe.judges.learn.events.events import Call, Value
from pytest_trainsafe.judges.learn.evidence import Evidence
from pytest_trainsafe.judges.learn.instrument.observation import observe
from pytest_trainsafe.judges.learn.invariant import hypothesis
from pytest_trainsafe.judges.learn.packs.pack import Pack
from pytest_trainsafe.judges.learn.relation import Relation
from tests.support.learn.faults import FAULTS, OTHER
from tests.support.learn.slips import net, steps
from tests.support.learn.training_loops import HEALTHY, LEARNED, PARAMETER, Plan, run_of


@pytest.mark.parametrize(("fault", "relation", "rule"), FAULTS, ids=[each[0] for each in FAULTS])
def test_a_planted_fault_is_reported_by_its_relation_in_its_first_step(
    fault: str, relation: str, rule: str, pack: Pack, relations: Mapping[str, Relation]
) -> None:
    # Choices of a program's author have a low confidence, so they are not checked by default.
    choice = (fault, relation) in (("write_outside", "within"), ("no_zero_grad", "sequence"))
    least = 0.0 if choice else CONFIDENCE
    found = check(run_of(replace(OTHER, fault=fault)), [pack], relations, min_confidence=least)
    first = [each for each in found.violations if each.step == OTHER.at]
    rules = {
        relations[each.invariant.claim.relation].explain(each.invariant.claim).sentence
        for each in first
        if each.invariant.claim.relation == relation
    }
    assert any(rule in each for each in rules), rules
    assert {each.step for each in found.violations} <= {3, 4}
    assert all(each.quoted for each in found.violations)


@pytest.mark.parametrize(
    "plan",
    [
        OTHER,
        replace(OTHER, autocast=None, accumulate=3, clip=False),
        replace(OTHER, warm_up=True, evaluate=False, set_to_none=True),
        replace(HEALTHY["mlp"], optimizer="SGD", steps=9, batch=16),
    ],
    ids=["other", "accumulation", "warm-up", "configuration"],
)
def test_a_healthy_program_has_no_violations(
    plan: Plan, pack: Pack, relations: Mapping[str, Relation]
) -> None:
    found = check(run_of(plan), [pack], relations)
    assert [each.quoted for each in found.violations] == []
    assert len(found.triggered) > 40


@pytest.mark.parametrize(
    ("fault", "relation", "rule"),
    [
        ("drift", "consistent", "data of torch.nn.Parameter stays equal on ranks"),
        ("same_data", "agreement", "content of arg.input of torch.nn.Linear.forward differs"),
        ("ragged", "agreement", "shape of arg.tensor of torch.distributed.all_reduce is equal"),
        ("once_more", "agreement", "the ranks call torch.distributed.all_reduce equally often"),
    ],
    ids=["drift", "same_data", "ragged", "once_more"],
)
def test_a_disagreement_between_ranks_is_reported_in_its_first_step(
    fault: str, relation: str, rule: str, ranks_pack: Pack, relations: Mapping[str, Relation]
) -> None:
    plan = replace(OTHER, autocast=None, dp=2, tp=2)
    assert check(run_of(plan), [ranks_pack], relations).violations == ()
    # Two programs are too few to show that ranks must read different data.
    least = 0.0 if fault == "same_data" else CONFIDENCE
    faulty = run_of(replace(plan, fault=fault))
    found = check(faulty, [ranks_pack], relations, min_confidence=least).violations
    of_relation = [each for each in found if each.invariant.claim.relation == relation]
    first = next(
        each
        for each in of_relation
        if rule in relations[relation].explain(each.invariant.claim).sentence
    )
    assert first.step == plan.at
    assert first.kept
    assert "rank" in first.detail or rule.startswith("the ranks call")


def test_a_parameter_that_is_initialised_twice_is_reported(
    pack: Pack, relations: Mapping[str, Relation]
) -> None:
    [found] = check(run_of(replace(OTHER, fault="twice")), [pack], relations).violations
    rule = relations["argument"].explain(found.invariant.claim).sentence
    assert rule.startswith("the identity of arg.tensor of torch.nn.init.normal_ differs from")


def test_a_replicated_parameter_that_drifts_apart_fails_the_rule_that_it_stays_equal(
    ranks_pack: Pack, relations: Mapping[str, Relation]
) -> None:
    """The rule needs no flags that distinguish replicated from sharded parameters."""
    plan = replace(OTHER, autocast=None, dp=1, tp=2, fault="drift")
    stays = hypothesis("consistent", form="stays", variable=PARAMETER, attribute="data")
    frames = [Frame(table) for table in run_of(plan).tables]
    evidence = Evidence()
    relations["consistent"].examples(frames, [stays], evidence)
    failed = {
        features["value.tensor_model_parallel"]: f for features, _, f in evidence.counts()[stays]
    }
    assert failed == {False: 1}


def test_weights_must_be_equal_only_on_ranks_that_hold_replicas(ranks_pack: Pack) -> None:
    [invariant] = [
        each
        for each in ranks_pack.invariants
        if each.claim.relation == "consistent"
        and each.claim["attribute"] == "data"
        and each.claim["variable"] == "torch.nn.Parameter"
        and each.claim["form"] is None
    ]
    assert str(invariant.precondition) == (
        "value.tensor_model_parallel is False, or tp_rank is equal and dp_rank differs"
    )


def test_each_rule_holds_on_the_programs_it_was_learned_from_with_equal_example_counts(
    pack: Pack, relations: Mapping[str, Relation]
) -> None:
    """Inference reads columns and checkers receive events: both must count the same examples."""

    seen: dict[str, dict[str, int]] = {}
    for program, plan in LEARNED.items():
        found = check(run_of(plan), [pack], relations, min_confidence=0)
        assert found.violations == ()
        for name, count in found.triggered.items():
            seen.setdefault(name, {})[program] = count
    assert seen == {
        each.id: {support.program: support.examples for support in each.support}
        for each in pack.invariants
    }


def test_calls_of_deepspeed_engines_are_attributed_to_their_engine() -> None:
    """A program may train two models with one engine each; other calls have the owner 0."""
    calls = [
        Call(api, {}, values={"self": Value("deepspeed.DeepSpeedEngine", identity=number)})
        for api in ("deepspeed.DeepSpeedEngine.step", "deepspeed.comm.all_reduce")
        for number in (1, 2)
    ]

    assert [owner_of(call.api, call) for call in calls] == [1, 2, 0, 0]


def test_a_violation_says_which_condition_broke_and_which_still_holds(
    ranks_pack: Pack, relations: Mapping[str, Relation]
) -> None:
    """Copies of tensor parallelism drift apart, while those of data parallelism stay equal."""
    plan = replace(OTHER, autocast=None, dp=2, tp=2, fault="drift")
    found = check(run_of(plan), [ranks_pack], relations, min_confidence=0.0).violations
    first = next(
        each
        for each in found
        if each.invariant.claim == hypothesis("consistent", variable=PARAMETER, attribute="data")
    )
    broken, held = first.scenarios.split("; ")
    assert broken.startswith("broken where value.tensor_model_parallel is False (")
    assert held.startswith("still holds where tp_rank is equal and dp_rank differs (")
    assert f"conditions: {first.scenarios}" in message(first, relations)


def test_norms_inside_an_optimizer_have_no_bounds(relations: Mapping[str, Relation]) -> None:
    with observe(apis=()) as observation:
        model = net()
        steps(model, torch.optim.Adam(model.parameters(), lr=0.01), 6)
    claims = list(relations["numeric"].hypotheses([Frame(observation.table)]))
    bounded = {each.text("variable") for each in claims if each["bound"] is not None}
    finite = {each.text("variable") for each in claims if each.text("form") == "finite"}
    assert "torch.nn.Parameter" in bounded
    assert "optimizer.state" in finite - bounded


def test_a_moment_of_one_number_may_fall_and_the_count_of_steps_may_not(
    relations: Mapping[str, Relation],
) -> None:
    weight = torch.nn.Parameter(torch.tensor(1.0))
    optimizer = torch.optim.AdamW([weight], lr=0.1)
    with observe() as observation:
        for factor in (1.0, 2.0, 3.0):
            optimizer.zero_grad()
            (factor * weight.square()).backward()
            optimizer.step()

    claims = list(relations["numeric"].hypotheses([Frame(observation.table)]))
    grows = {
        claim.text("attribute")
        for claim in claims
        if claim.text("variable") == "optimizer.state" and claim.text("form") == "grows"
    }
    assert grows == {"step"}
