"""Slips of schedules, data and loading are noticed, and not in the program without them."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    SequentialLR,
)
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    RandomSampler,
    TensorDataset,
    random_split,
)

from pytest_trainsafe.judges.learn.instrument.observation import observe
from tests.support.learn.slips import loss_of, net, sgd, slips_of, steps

ROWS = torch.arange(128.0).view(32, 4)


# Schedules.


@pytest.mark.filterwarnings("ignore:Detected call of")
@pytest.mark.parametrize("when", ["after", "before", "twice", "never"])
def test_when_a_scheduler_steps(when: str) -> None:
    def program() -> None:
        model = net()
        optimizer = sgd(model)
        scheduler = ExponentialLR(optimizer, 0.9)
        for _ in range(20 if when == "never" else 4):
            if when == "before":
                scheduler.step()
            steps(model, optimizer)
            for _ in range({"after": 1, "twice": 2}.get(when, 0)):
                scheduler.step()

    wanted = {"before": ["scheduled-ahead"], "twice": ["scheduled-ahead"]}
    assert slips_of(program) == {**wanted, "never": ["never-scheduled"]}.get(when, [])


def test_schedulers_in_sequence_and_once_an_epoch() -> None:
    def program() -> None:
        model = net()
        optimizer = sgd(model)
        parts = [LinearLR(optimizer, 0.1, total_iters=2), ExponentialLR(optimizer, 0.9)]
        scheduler = SequentialLR(optimizer, parts, milestones=[2])
        for _ in range(4):
            steps(model, optimizer, 3)
            scheduler.step()

    assert slips_of(program) == []


@pytest.mark.parametrize("loads", ["all", "no schedule", "too early"])
def test_what_a_resume_loads(loads: str) -> None:
    def program() -> None:
        model = net()
        optimizer = torch.optim.Adam(model.parameters())
        scheduler = LambdaLR(optimizer, lambda step: 0.5**step)
        for _ in range(3):
            steps(model, optimizer)
            scheduler.step()
        again = copy.deepcopy(model)
        resumed = torch.optim.Adam(again.parameters())
        saved = copy.deepcopy(optimizer.state_dict())
        if loads == "too early":
            resumed.load_state_dict(saved)
        follows = LambdaLR(resumed, lambda step: 0.5**step)
        if loads != "too early":
            resumed.load_state_dict(saved)
        if loads != "no schedule":
            follows.load_state_dict(scheduler.state_dict())
        for _ in range(3):
            steps(again, resumed)
            follows.step()

    wanted = {"no schedule": ["schedule-began-anew"], "too early": ["rate-lost"]}
    assert slips_of(program) == wanted.get(loads, [])


@pytest.mark.parametrize("length", [2, 8])
def test_a_cosine_schedule_whose_length_is_in_other_units(length: int) -> None:
    def program() -> None:
        model = net()
        optimizer = sgd(model)
        scheduler = CosineAnnealingLR(optimizer, length)
        for _ in range(6):
            steps(model, optimizer)
            scheduler.step()

    assert slips_of(program) == ["schedule-overrun"] * (length == 2)


def test_a_scheduler_of_a_wrapped_optimizer() -> None:
    class Wrapper(torch.optim.Optimizer):
        """Steps another optimizer, as accelerate's does."""

        def __init__(self, optimizer: torch.optim.Optimizer) -> None:
            self.optimizer = optimizer
            self.param_groups, self.defaults = optimizer.param_groups, optimizer.defaults
            self.state = optimizer.state
            optimizer.load_state_dict(optimizer.state_dict())

        def step(self, closure: None = None) -> None:  # type: ignore[override]
            self.optimizer.step()

        def zero_grad(self, set_to_none: bool = True) -> None:
            self.optimizer.zero_grad(set_to_none)

    def program() -> None:
        model = net()
        optimizer = Wrapper(torch.optim.Adam(model.parameters()))
        scheduler = ExponentialLR(optimizer, 0.9)
        for _ in range(4):
            steps(model, optimizer)
            scheduler.step()

    assert slips_of(program) == []


# Data.


@pytest.mark.parametrize("anew", [False, True])
def test_a_permutation_that_is_drawn_again(anew: bool) -> None:
    def program() -> None:
        model = net()
        optimizer = sgd(model)
        generator = torch.Generator().manual_seed(1)
        for _ in range(2):
            if anew:
                generator = torch.Generator().manual_seed(1)
            for _ in torch.randperm(32, generator=generator).split(16):
                steps(model, optimizer)

    assert slips_of(program) == ["order-repeated"] * anew


def test_a_split_that_is_made_again() -> None:
    def program() -> None:
        model = net()
        optimizer = sgd(model)
        for _ in range(2):
            random_split(TensorDataset(ROWS), [24, 8], torch.Generator().manual_seed(1))
            steps(model, optimizer, 2)

    assert slips_of(program) == []


@pytest.mark.parametrize("wrong", [False, True])
def test_a_sampler_whose_epoch_is_not_set(wrong: bool) -> None:
    def program() -> None:
        model = net()
        optimizer = sgd(model)
        data = TensorDataset(ROWS)
        sampler = DistributedSampler[tuple[torch.Tensor, ...]](data, num_replicas=2, rank=0)
        loader = DataLoader(data, batch_size=4, sampler=sampler)
        for epoch in range(3):
            if not wrong:
                sampler.set_epoch(epoch)
            for (rows,) in loader:
                optimizer.zero_grad()
                model(rows).mean().backward()
                optimizer.step()

    assert slips_of(program) == ["order-repeated"] * wrong


@pytest.mark.parametrize("wrong", [False, True])
def test_a_generator_that_is_made_anew(wrong: bool) -> None:
    def program() -> None:
        model = net()
        optimizer, data = sgd(model), TensorDataset(ROWS)
        kept = torch.Generator().manual_seed(3)
        for _ in range(2):
            generator = torch.Generator().manual_seed(3) if wrong else kept
            sampler = RandomSampler(data, generator=generator)
            for (rows,) in DataLoader(data, batch_size=4, sampler=sampler):
                optimizer.zero_grad()
                model(rows).mean().backward()
                optimizer.step()

    assert slips_of(program) == ["order-repeated"] * wrong


@pytest.mark.parametrize("wrong", [False, True])
def test_a_loader_that_begins_anew_in_each_step(wrong: bool) -> None:
    def program() -> None:
        model = net()
        optimizer, loader = sgd(model), DataLoader(TensorDataset(ROWS), batch_size=4)
        kept = iter(loader)
        for _ in range(4):
            (rows,) = next(iter(loader) if wrong else kept)
            optimizer.zero_grad()
            model(rows).mean().backward()
            optimizer.step()

    assert slips_of(program) == ["batch-repeated"] * wrong


def test_an_example_batch_of_the_validation_in_each_epoch() -> None:
    def program() -> None:
        model = net()
        optimizer, training = sgd(model), DataLoader(TensorDataset(ROWS), batch_size=8)
        validation = DataLoader(TensorDataset(ROWS), batch_size=4)
        for _ in range(3):
            for (rows,) in training:
                optimizer.zero_grad()
                model(rows).mean().backward()
                optimizer.step()
            with torch.no_grad():
                model(next(iter(validation))[0])

    assert slips_of(program) == []


@pytest.mark.parametrize("shuffle", [False, True])
def test_data_that_are_sorted_by_label(shuffle: bool) -> None:
    def program() -> None:
        model = net()
        data = TensorDataset(ROWS, torch.arange(32) // 16)
        optimizer, loader = sgd(model), DataLoader(data, batch_size=8, shuffle=shuffle)
        for rows, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(rows), labels).backward()
            optimizer.step()

    assert slips_of(program) == ["one-label"] * (not shuffle)


@pytest.mark.parametrize("how", ["once", "in each epoch", "with fork_rng"])
def test_a_seed_that_is_set_again(how: str) -> None:
    def program() -> None:
        torch.manual_seed(3)
        model = net()
        optimizer = sgd(model)
        for _ in range(3):
            if how == "in each epoch":
                torch.manual_seed(3)
            elif how == "with fork_rng":
                with torch.random.fork_rng(devices=[]):
                    torch.manual_seed(3)
                    torch.randn(2)
            steps(model, optimizer, 2)

    assert slips_of(program) == ["seeded-again"] * (how == "in each epoch")


# Loading.


@pytest.mark.parametrize("loads", ["all", "the model", "for another model"])
def test_the_state_of_an_optimizer_in_a_checkpoint(loads: str, tmp_path: Path) -> None:
    def program() -> None:
        model = net()
        optimizer = torch.optim.Adam(model.parameters())
        steps(model, optimizer, 2)
        file = tmp_path / "last.pt"
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
        again, loaded = net(), torch.load(file)
        again.load_state_dict(loaded["model"])
        whole = nn.Sequential(again, nn.Linear(2, 2)) if loads == "for another model" else again
        resumed = torch.optim.Adam(whole.parameters())
        if loads == "all":
            resumed.load_state_dict(loaded["optimizer"])
        steps(whole, resumed, 2)

    assert slips_of(program) == ["optimizer-not-resumed"] * (loads == "the model")


@pytest.mark.parametrize("prefix", ["", "module."])
def test_a_state_of_which_no_key_fits(prefix: str) -> None:
    def program() -> None:
        source, model = net(), net()
        state = {f"{prefix}{name}": each for name, each in source.state_dict().items()}
        model.load_state_dict(state, strict=False)
        steps(model, sgd(model), 2)

    assert slips_of(program) == ["nothing-loaded"] * bool(prefix)


@pytest.mark.parametrize("assign", [False, True])
def test_a_load_that_unties(assign: bool) -> None:
    def program() -> None:
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
        model[2].weight = model[0].weight
        state = {name: each.clone() for name, each in model.state_dict().items()}
        model.load_state_dict(state, assign=assign)
        steps(model, sgd(model), 2)

    assert slips_of(program) == ["ties-broken"] * assign


@pytest.mark.parametrize("how", ["before", "after", "after, by hand"])
def test_when_parameters_are_initialised(how: str) -> None:
    def program() -> None:
        source, model = net(), net()
        if how == "before":
            nn.init.normal_(model[0].weight)  # type: ignore[arg-type]
        model.load_state_dict(source.state_dict())
        if how == "after":
            nn.init.normal_(model[0].weight)  # type: ignore[arg-type]
        elif how == "after, by hand":
            with torch.no_grad():
                model[0].weight.normal_()  # type: ignore[operator]
        steps(model, sgd(model), 2)

    assert slips_of(program) == ["initialised-after-load"] * (how != "before")


@pytest.mark.parametrize(("layer", "wrong"), [(0, True), (-1, False)])
def test_an_initialisation_in_the_middle_of_the_training(layer: int, wrong: bool) -> None:
    def program() -> None:
        model = net()
        optimizer = sgd(model)
        steps(model, optimizer, 2)
        for each in model[layer].parameters():
            nn.init.normal_(each)
        steps(model, optimizer, 2)

    assert slips_of(program) == ["initialised-in-training"] * wrong


def test_a_plain_loop_with_a_validation_has_no_slip() -> None:
    def program() -> None:
        model = net(dropout=0.2, norm=True)
        optimizer = torch.optim.AdamW(model.parameters())
        scheduler = ExponentialLR(optimizer, 0.9)
        for _ in range(3):
            model.train()
            steps(model, optimizer, 3)
            scheduler.step()
            model.eval()
            with torch.no_grad():
                loss_of(model)

    assert slips_of(program) == []


@pytest.mark.parametrize(("apis", "count"), [(None, 0), (["torch.nn.init"], 3)])
def test_initialisations_are_recorded_where_they_are_named(
    apis: list[str] | None, count: int
) -> None:
    with observe(apis) as observation:
        for _ in range(3):
            nn.init.zeros_(torch.empty(2))
    names = [observation.table.texts[api] for api in observation.table.calls["api"]]
    assert names == ["torch.nn.init.zeros_"] * count
