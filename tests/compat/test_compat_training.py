"""The dtype of optimizers' scalars, and the numbers of schedulers and gradient scalers."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from pytest_trainsafe.compat import training
from pytest_trainsafe.compat.private import lacking


def scalar_dtype() -> torch.dtype:
    """The dtype of the scalar that NAdam keeps after a step."""
    parameter = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.NAdam([parameter], lr=0.1)
    parameter.sum().backward()
    optimizer.step()
    dtype: torch.dtype = optimizer.state[parameter]["mu_product"].dtype
    return dtype


def wide(original: Any) -> Any:
    return lambda *_, **__: torch.float64


def test_the_dtype_of_scalars_is_replaced_inside_the_context_alone() -> None:
    with training.replaced_scalar_dtype(wide):
        assert scalar_dtype() is torch.float64
    assert scalar_dtype() is torch.float32


def test_a_scheduler_has_its_count_and_its_rates_under_the_known_names() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.5)
    held = vars(torch.optim.lr_scheduler.ConstantLR(optimizer, factor=0.5))
    assert held.keys() >= training.SCHEDULER_ATTRIBUTES
    assert [0.25] in [held[name] for name in training.SCHEDULER_ATTRIBUTES]


def test_a_sequence_and_a_chain_of_schedulers_have_their_parts_under_the_known_name() -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    first, second = (torch.optim.lr_scheduler.ConstantLR(optimizer) for _ in range(2))
    chain = torch.optim.lr_scheduler.ChainedScheduler([first, second])
    sequence = torch.optim.lr_scheduler.SequentialLR(optimizer, [first, second], [1])

    assert training.schedulers_of(chain) == training.schedulers_of(sequence) == (first, second)
    assert training.schedulers_of(first) == ()


def test_the_numbers_of_a_scaler_are_its_scale_its_growth_tracker_and_its_settings() -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=5)
    numbers = dict(training.scaler_numbers(scaler))
    assert numbers["scale"]() is None
    scaler.scale(torch.ones(1))
    assert {name: read() for name, read in numbers.items()} == {
        "scale": 8.0,
        "growth_tracker": 0,
        "enabled": True,
        "growth_factor": 2.0,
        "backoff_factor": 0.5,
        "growth_interval": 5,
    }


def test_a_disabled_scaler_has_no_numbers_and_lacks_none(without: Any) -> None:
    copy = without("training", "none")
    disabled = torch.amp.GradScaler("cpu", enabled=False)
    numbers = {name: read() for name, read in copy.scaler_numbers(disabled)}
    assert numbers == {"scale": None, "growth_tracker": None, "enabled": False}
    assert lacking() == []


def test_without_the_function_optimizers_choose_the_dtype_and_step(without: Any) -> None:
    copy = without("training", "torch.optim.optimizer._get_scalar_dtype")
    with copy.replaced_scalar_dtype(lambda original: original):
        assert scalar_dtype() is torch.float32
    [why] = lacking()
    assert why.startswith("scalars of optimizers have the dtype of the rung: torch ")


def test_without_an_attribute_the_other_numbers_of_a_scaler_are_read(without: Any) -> None:
    copy = without("training", "none")
    scaler = torch.amp.GradScaler("cpu")
    del scaler.__dict__["_growth_factor"]
    assert "growth_factor" not in dict(copy.scaler_numbers(scaler))
    assert dict(copy.scaler_numbers(scaler))["backoff_factor"]() == 0.5
    [why] = lacking()
    assert why.endswith(" has no GradScaler._growth_factor")
