"""Correct programs with folds, resumes and schedules of other kinds have no slip."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, StepLR
from torch.utils.data import DataLoader, Subset, TensorDataset

from tests.support.learn.slips import slips_of

Program = Callable[[], None]


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))


def examples(count: int) -> TensorDataset:
    x = torch.randn(count, 6)
    return TensorDataset(x, x[:, :3].argmax(1))


def reads(model: nn.Module, optimizer: torch.optim.Optimizer, loader: DataLoader) -> None:
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


def trains(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    reads(model, optimizer, DataLoader(examples(steps * 8), 8))


def adam(model: nn.Module, lr: float = 1e-2) -> torch.optim.Adam:
    return torch.optim.Adam(model.parameters(), lr=lr)


def folds_with_one_seed() -> None:
    every, order = examples(48), torch.randperm(48).tolist()
    for fold in range(3):
        torch.manual_seed(42)
        held = order[16 * fold : 16 * fold + 16]
        model = net()
        optimizer = adam(model)
        validation = DataLoader(Subset(every, held), 8)
        training = Subset(every, [each for each in order if each not in held])
        for _ in range(2):
            with torch.no_grad():
                for x, y in validation:
                    F.cross_entropy(model(x), y)
            reads(model, optimizer, DataLoader(training, 8, shuffle=True))


def two_rates_with_one_seed() -> None:
    for lr in (1e-2, 1e-3):
        torch.manual_seed(0)
        every, model = examples(40), net()
        optimizer = adam(model, lr)
        for _ in range(3):
            reads(model, optimizer, DataLoader(every, 8, shuffle=True))


def a_resume_in_the_middle_of_an_epoch() -> None:
    every = examples(40)

    def epoch(model: nn.Module, optimizer: torch.optim.Optimizer, used: int, until: int) -> None:
        order = torch.randperm(40, generator=torch.Generator().manual_seed(3)).tolist()
        reads(model, optimizer, DataLoader(Subset(every, order[8 * used : 8 * until]), 8))

    model = net()
    optimizer = adam(model)
    epoch(model, optimizer, 0, 3)
    state = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    again = net()
    other = adam(again)
    again.load_state_dict(state[0])
    other.load_state_dict(state[1])
    epoch(again, other, 3, 5)


def a_new_training_from_a_whole_checkpoint() -> None:
    model, file = net(), io.BytesIO()
    optimizer = adam(model)
    trains(model, optimizer, 4)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    tuned = net()
    tuned.load_state_dict(torch.load(file)["model"])
    trains(tuned, adam(tuned, 1e-3), 4)


def a_return_to_the_last_checkpoint() -> None:
    model, file = net(), io.BytesIO()
    optimizer = adam(model)
    trains(model, optimizer, 4)
    parts = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save({**parts, "generator": torch.get_rng_state()}, file)
    trains(model, optimizer, 3)
    file.seek(0)
    state = torch.load(file)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    trains(model, optimizer, 4)


def a_schedule_that_is_stepped_to_its_epoch() -> None:
    model = net()
    optimizer = adam(model)
    schedule = StepLR(optimizer, 2, 0.5)
    for _ in range(3):
        schedule.step()
    for _ in range(3):
        trains(model, optimizer, 2)
        schedule.step()


def a_run_shorter_than_an_epoch() -> None:
    model = net()
    optimizer = adam(model)
    schedule = StepLR(optimizer, 2)
    trains(model, optimizer, 6)
    del schedule


def a_cosine_whose_last_step_is_not_used() -> None:
    model = net()
    optimizer = adam(model)
    schedule = CosineAnnealingLR(optimizer, T_max=4)
    for _ in range(5):
        trains(model, optimizer, 2)
        schedule.step()


def a_warm_up_from_zero_in_epochs() -> None:
    model = net()
    optimizer = adam(model)
    schedule = LambdaLR(optimizer, lambda epoch: min(1.0, epoch / 2))
    for _ in range(4):
        trains(model, optimizer, 4)
        schedule.step()


def pruning_after_each_epoch() -> None:
    every, model = examples(32), net()
    loader = DataLoader(every, 8, shuffle=True)
    for _ in range(4):
        reads(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), loader)
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(p.abs() > 0.2 * p.abs().median())


def examples_of_one_class() -> None:
    model, centre = nn.Linear(6, 4), torch.randn(4)
    optimizer = adam(model)
    loader = DataLoader(TensorDataset(torch.randn(40, 6), torch.zeros(40, dtype=torch.int64)), 8)
    for _ in range(3):
        for x, _ in loader:
            optimizer.zero_grad()
            (model(x) - centre).square().sum(1).mean().backward()
            optimizer.step()


@pytest.mark.filterwarnings("ignore:Detected call of")
@pytest.mark.parametrize(
    "program",
    [
        folds_with_one_seed,
        two_rates_with_one_seed,
        a_resume_in_the_middle_of_an_epoch,
        a_new_training_from_a_whole_checkpoint,
        a_return_to_the_last_checkpoint,
        a_schedule_that_is_stepped_to_its_epoch,
        a_run_shorter_than_an_epoch,
        a_cosine_whose_last_step_is_not_used,
        a_warm_up_from_zero_in_epochs,
        pruning_after_each_epoch,
        examples_of_one_class,
    ],
)
def test_a_correct_run_has_no_slip(program: Program) -> None:
    assert slips_of(program) == []
