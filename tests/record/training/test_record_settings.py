"""After the program, the settings of each group of the optimizer's parameters are recorded."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from pytest_trainsafe.record.context import Context
from pytest_trainsafe.record.training.left import settings
from pytest_trainsafe.trace.facts import Settings

WEIGHT = nn.Parameter(torch.ones(2))
BIAS = nn.Parameter(torch.ones(2))
NAMED = {"weight": WEIGHT, "bias": BIAS}


def found(optimizer: Any) -> list[Settings]:
    return list(settings(optimizer, NAMED))


def test_each_group_names_its_parameters_and_its_numbers() -> None:
    groups = [{"params": [WEIGHT], "weight_decay": 0.1}, {"params": [BIAS], "weight_decay": 0}]

    one, two = found(torch.optim.AdamW(groups, lr=0.5, amsgrad=True))

    assert (one.parameters, two.parameters) == (("weight",), ("bias",))
    assert (one.values["weight_decay"], two.values["weight_decay"]) == ("0.1", "0.0")
    assert one.values["betas"] == "0.9 0.999"
    assert one.values["amsgrad"] == "True"
    assert "foreach" not in one.values
    assert "params" not in one.values


def test_optimizers_in_wrappers_and_lists_are_found() -> None:
    two = [torch.optim.SGD([WEIGHT], lr=0.1), torch.optim.SGD([BIAS], lr=0.2)]

    assert [each.values["lr"] for each in found(two)] == ["0.1", "0.2"]


def test_a_group_with_a_tensor_of_another_origin_has_no_names() -> None:
    [flat] = found(torch.optim.SGD([nn.Parameter(torch.ones(4))], lr=0.1))

    assert flat.parameters == ()
    assert flat.values["lr"] == "0.1"


def test_a_master_copy_has_the_name_of_its_parameter() -> None:
    master = nn.Parameter(torch.ones(2))
    held = nn.Parameter(torch.ones(2))
    held.main_param = master  # type: ignore[attr-defined]

    [each] = settings(torch.optim.SGD([master], lr=0.1), {"held": held})

    assert each.parameters == ("held",)


def test_a_tensor_of_one_element_is_a_number_and_an_empty_group_is_left_out() -> None:
    optimizer = torch.optim.Adam([WEIGHT], lr=torch.tensor(0.25), capturable=False, foreach=False)
    optimizer.param_groups.append({"params": [], "lr": 7.0})

    [each] = found(optimizer)

    assert each.values["lr"] == "0.25"


@pytest.mark.parametrize("optimizer", [None, object(), torch.nn.Identity()])
def test_what_has_no_groups_has_no_settings(optimizer: Any) -> None:
    assert found(optimizer) == []


def test_the_settings_after_the_last_schedule_are_recorded(record: Any) -> None:
    def train(ctx: Context) -> None:
        model = nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        ctx.watch(model, optimizer)
        with ctx.step(), ctx.microbatch(0):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
        schedule.step()

    stepped, left = record(train).trace.ranks[0].events_of(Settings)

    assert stepped.parameters == left.parameters == ("weight", "bias")
    assert (stepped.step, stepped.values["lr"]) == (0, "0.5")
    assert (left.step, left.values["lr"]) == (None, "0.25")
