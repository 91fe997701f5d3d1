"""The snapshot of a program's set-up reports what another run of the program trains otherwise."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn

from pytest_trainsafe.judges.learn.columns.setups import holds_kind
from pytest_trainsafe.judges.learn.inference.learn import learn
from tests.support.learn.observed_programs import (
    RULES,
    Net,
    checked,
    learned,
    loop,
    observed,
    partial,
    said,
)


def train(fault: str = "") -> None:
    """A loop over a tied model with two groups."""
    model = Net(tied=fault != "untied")
    extra = nn.Linear(4, 4)
    model.extra = extra
    extra.weight.requires_grad_(fault == "thawed")
    if fault == "missing":
        del model.extra
        model.other = extra
    kept = [] if fault == "left_out" else [extra.bias]
    first = list(model.body.parameters())
    if fault == "untied":
        first += list(model.head.parameters())
    groups = [
        {"params": first, "weight_decay": 0.5 if fault == "decay" else 0.1},
        {"params": kept, "weight_decay": 0.0},
    ]
    if fault == "evaluation":
        model.drop.eval()
    optimizer = torch.optim.SGD(groups, lr=0.1)
    loop(model, optimizer)


FAULTS = (
    ("thawed", "model.extra.weight is frozen; in no optimizer"),
    ("left_out", "model.extra.bias is trainable; optimizer.param_groups.1"),
    ("missing", "model.extra.weight is frozen; in no optimizer"),
    ("untied", "model.body.weight is trainable; optimizer.param_groups.0; also model.head.weight"),
    ("decay", "weight_decay of optimizer.param_groups.0 is 0.1"),
    ("evaluation", "model runs in the mode: training"),
)


@pytest.mark.parametrize(("fault", "rule"), FAULTS, ids=[fault for fault, _ in FAULTS])
def test_a_changed_set_up_is_reported_by_name_in_the_first_step(fault: str, rule: str) -> None:
    found = checked(partial(train, fault=fault), learned(train, "setup"))
    assert rule in said(found)
    assert found.violations[0].step == 0


def test_the_same_set_up_is_not_reported() -> None:
    rules = learned(train, "setup")
    assert len(rules) > 5
    assert all(RULES["setup"].valid(each.claim) for each in rules)
    found = checked(train, rules)
    assert found.violations == ()
    assert found.triggered.keys() == {each.id for each in rules}


def test_a_missing_parameter_is_named() -> None:
    found = checked(partial(train, fault="missing"), learned(train, "setup"))
    details = {each.detail for each in found.violations}
    assert "the model has no parameter model.extra.weight" in details


def test_layers_that_are_trained_alike_share_a_rule() -> None:
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))
    rules = learned(partial(plain, model=model), "setup")
    names = [each.claim["object"] for each in rules if each.claim["form"] == "parameter"]
    assert sorted(map(str, names)) == ["model.*.bias", "model.*.weight"]


def test_another_program_with_the_same_names_is_no_counterexample() -> None:
    frozen = partial(train, fault="thawed")
    both = learn([observed(train, "one"), observed(frozen, "two")]).invariants
    own = [each for each in both if each.claim.relation == "setup"]
    assert {each.support[0].program for each in own} == {"one", "two"}
    assert checked(train, own, "one").violations == ()
    assert checked(frozen, own, "two").violations == ()
    assert checked(frozen, own, "one").violations
    assert checked(frozen, own, "third").triggered == {}


def test_a_parameter_that_thaws_while_training_has_no_rule() -> None:
    def thawing() -> None:
        model = Net()
        model.body.requires_grad_(False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loop(model, optimizer, steps=2)
        model.body.requires_grad_(True)
        loop(model, optimizer, steps=2)

    names = [each.claim["object"] for each in learned(thawing, "setup")]
    assert "model.head.weight" in names
    assert "model.body.weight" not in names


def two_phases(fault: str = "") -> None:
    """An encoder that is trained first, and then a new head with it."""
    body = nn.Linear(4, 4)
    loop(body, torch.optim.SGD(body.parameters(), lr=0.1), steps=2)
    gc.collect()  # the optimizer that counts the steps is the next one now
    body.requires_grad_(False)
    model = nn.Sequential()
    model.body = body
    model.head = nn.Linear(4, 4)
    if fault:
        model.head.requires_grad_(False)
        model.other = nn.Linear(4, 4)
        if fault == "replaced":
            del model.head
    trained = [each for each in model.parameters() if each.requires_grad]
    loop(model, torch.optim.SGD(trained, lr=0.1))


@pytest.mark.parametrize(("fault", "step"), [("", None), ("frozen", 2), ("replaced", 2)])
def test_a_layer_of_a_second_phase_has_a_rule(fault: str, step: int | None) -> None:
    rules = learned(two_phases, "setup")
    found = checked(partial(two_phases, fault=fault), rules)
    about = [each for each in found.violations if "head" in str(each.invariant.claim["object"])]
    assert {each.step for each in about[:1]} == ({step} - {None})
    assert bool(fault) == bool(found.violations)


def plain(model: nn.Module) -> None:
    """A loop over a model."""
    loop(model, torch.optim.SGD(model.parameters(), lr=0.1))


@pytest.mark.parametrize(
    ("held", "expected"),
    [
        ({}, True),
        ({"Parameter": {"optimizer"}}, True),
        ({"Parameter": {"other"}, "DTensor": {"optimizer"}}, False),
        # Sharded parameters are plain ones while they are gathered, and then in no optimizer.
        ({"Parameter": set(), "DTensor": {"optimizer"}}, False),
        ({"Parameter": set(), "DTensor": {"other"}}, True),
    ],
)
def test_an_optimizer_that_is_known_to_hold_another_kind_does_not_hold_this_one(
    held: dict[str, set[str]], expected: bool
) -> None:
    assert holds_kind("optimizer", "Parameter", held) == expected
    assert holds_kind("", "Parameter", held)
