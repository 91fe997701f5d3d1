"""The single-device mixture of experts: training, routing, balancing loss and capacity."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch

from pytest_trainsafe.core.point import Point
from pytest_trainsafe.reference_models import moe
from pytest_trainsafe.reference_models.blocks.experts import Experts
from pytest_trainsafe.reference_models.blocks.routing import Balance, Capacity, Selection
from pytest_trainsafe.reference_models.config import MoEConfig
from pytest_trainsafe.reference_models.networks.moe import MoE
from pytest_trainsafe.reference_models.parallel.axes import Axes, Axis
from pytest_trainsafe.reference_models.parallel.experts.apply_moe import parallel_moe
from tests.support.reference_models.rank_double import Double, Job, run_here


def test_the_moe_learns() -> None:
    job = Job(arguments={"steps": 20, "learning_rate": 1e-2}, dtype="bfloat16", program="moe")
    run = run_here(job)

    assert 5.3 < run.loss(0) < 6.2
    assert run.loss(19) < run.loss(0) - 1.0


def test_the_balancing_loss_of_uniform_routing_is_its_coefficient() -> None:
    balance = Balance(MoEConfig(experts=4, balance=0.25))
    even = torch.full((1, 4, 4), 0.25)
    chosen = torch.tensor([[[0, 1], [2, 3], [1, 0], [3, 2]]])
    one = torch.eye(4)[torch.zeros(1, 4, dtype=torch.int64)]

    torch.testing.assert_close(balance(even, chosen).mean(), torch.tensor(0.25))
    to_one = balance(one, torch.zeros(1, 4, 1, dtype=torch.int64))
    torch.testing.assert_close(to_one.mean(), torch.tensor(4 * 0.25))


def test_first_choices_take_capacity_before_second_ones_and_early_tokens_before_late_ones() -> None:
    capacity = Capacity(MoEConfig(experts=2, top_k=2, capacity_factor=0.5))
    chosen = torch.tensor([[[0, 1], [0, 1]], [[0, 1], [1, 0]]])  # room for 2 each

    assert capacity(chosen).tolist() == [[[0, 1], [0, 2]], [[2, 2], [1, 2]]]


def test_without_a_capacity_factor_no_token_is_dropped() -> None:
    chosen = torch.zeros(2, 8, 1, dtype=torch.int64)

    assert torch.equal(Capacity(MoEConfig(top_k=1))(chosen), chosen)


def test_the_most_probable_experts_are_chosen_in_descending_order() -> None:
    probabilities = torch.tensor([[[0.1, 0.6, 0.05, 0.25]]])

    assert Selection(MoEConfig())(probabilities).tolist() == [[[1, 3]]]


def test_expert_outputs_are_weighted_and_a_dropped_choice_adds_nothing() -> None:
    torch.manual_seed(0)
    experts = Experts(MoEConfig(experts=3)).double()
    hidden = torch.randn(1, 2, 64, dtype=torch.float64)
    chosen = torch.tensor([[[2, 0], [1, 3]]])
    weights = torch.tensor([[[0.7, 0.2], [0.5, 0.4]]], dtype=torch.float64)

    mixed = experts(hidden, chosen, weights)

    first = 0.7 * experts["2"](hidden[:, 0]) + 0.2 * experts["0"](hidden[:, 0])
    torch.testing.assert_close(mixed[:, 0], first)
    torch.testing.assert_close(mixed[:, 1], 0.5 * experts["1"](hidden[:, 1]))


def test_the_parallel_moe_has_no_parallel_modules_on_one_rank() -> None:
    plain, swapped = (
        [type(module) for module in model.modules()]
        for model in (MoE(MoEConfig()), parallel_moe(MoEConfig(), Axes()))
    )

    assert swapped == plain


def test_a_rank_names_its_experts_by_their_global_numbers() -> None:
    model = parallel_moe(MoEConfig(layers=1), Axes(ep=Axis(2, 1)))

    names = {name.split(".")[5] for name, _ in model.named_parameters() if ".experts." in name}
    assert names == {"2", "3"}


def test_all_annotations_of_the_moe_match_a_module_or_parameter() -> None:
    double: Any = Double(Job(program="moe"))

    moe.train(double, steps=0, hidden=96)

    assert double.unmatched == []


@pytest.mark.parametrize(
    ("point", "arguments", "reason"),
    [
        (Point.of(tp=2, ep=2), {}, "ep=2 does not divide dp*cp=1"),
        (Point.of(dp=4, ep=4), {"experts": 6, "microbatches": 4}, "experts=6 is not divisible"),
        (Point.of(pp=2), {}, "pipeline stages would lose the balancing loss"),
        (Point.of(recompute="full"), {}, "recompute=full would lose the balancing loss"),
        (Point.of(dp=2, cp=2, ep=4, zero=1, recompute="selective"), {}, None),
    ],
)
def test_the_rules_of_the_moe_refuse_invalid_points_with_a_reason(point, arguments, reason) -> None:
    parameters = list(inspect.signature(moe.train).parameters.values())[1:]
    defaults = {parameter.name: parameter.default for parameter in parameters}

    program: Any = moe.train
    reasons = [rule(point, {**defaults, **arguments}) for rule in program.trainsafe_rules]

    found = [each for each in reasons if each is not None]
    assert found[0].startswith(reason) if reason else found == [], found


def test_incompatible_sizes_of_the_moe_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"top_k=5 is greater than experts=4"):
        MoEConfig(top_k=5)
    with pytest.raises(ValueError, match=r"experts=4 must be a multiple of ep=3"):
        parallel_moe(MoEConfig(), Axes(ep=Axis(3)))
