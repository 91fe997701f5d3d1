"""replay_plan lists what a restart needs and the checkpoint lacks, found by tracing operations."""

from __future__ import annotations

import copy
import functools
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from pytest_trainsafe import ReplayCheckpoint, replay_plan
from pytest_trainsafe.errors import ArgumentError, ArgumentTypeError
from tests.support.replay.restarted_training import train

#: What a program may forget to save, and the plan's entry: the action and a part of the text.
FORGOTTEN = {
    "optimizer": ("save", "training changes it at"),
    "average": ("save", "training changes it at"),
    "counter": ("save", "it changes at"),
    "generator": ("save", "pass it in ReplayCheckpoint(generators=...)"),
    "numpy generator": ("save", "pass it in ReplayCheckpoint(generators=...)"),
    "shuffle": ("regenerate", "regenerates with keep='all', and to fast_forward"),
    "list": ("regenerate", "random.shuffle of"),
    "loader": ("regenerate", "held by Python, which is not traced"),
}


class Held:
    """A state that holds tensors."""

    def __init__(self, **tensors: torch.Tensor) -> None:
        self.tensors = tensors

    def state_dict(self):
        return dict(self.tensors)

    def load_state_dict(self, state):
        raise AssertionError


def forgetful(folder: Path, forgotten: str = "") -> None:
    """Six steps in two epochs; the checkpoint after the fourth lacks what `forgotten` names."""
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    average = copy.deepcopy(model.state_dict())
    counter, rows, numbers = torch.zeros(()), torch.arange(12), list(range(12))
    data = torch.arange(24.0).reshape(12, 2) / 24
    shuffling, noise = torch.Generator(), np.random.default_rng(0)
    loader = DataLoader(TensorDataset(data), batch_size=4, shuffle=True)
    generators = {"shuffling": shuffling, "noise": noise}
    left_out = {"generator": "shuffling", "numpy generator": "noise"}
    generators.pop(left_out.get(forgotten or "", ""), None)
    states = {} if forgotten == "counter" else {"counter": Held(counter=counter)}
    replay = ReplayCheckpoint("forgetful", generators=generators, states=states)

    def registered(name, function):
        return function if forgotten == name else replay.regenerates(name, function, keep="all")

    def shuffle():
        rows.copy_(rows[torch.randperm(12, generator=shuffling)])

    shuffled = registered("shuffle", shuffle)
    listed = registered("list", lambda: random.shuffle(numbers))
    batches = registered("loader", lambda: iter(loader))
    for step in range(6):
        if step % 3 == 0:
            shuffled()
            listed()
            iterator = batches()
        [batch] = next(iterator)
        chosen = data[rows[step % 3 * 4 :][:4]] + data[numbers[step]] + float(noise.normal())
        optimizer.zero_grad()
        loss = model(batch + chosen + counter).square().mean()
        drawn = torch.rand((), generator=shuffling)
        (loss * drawn).backward()
        optimizer.step()
        counter += 1
        with torch.no_grad():
            for name, value in model.state_dict().items():
                average[name].mul_(0.9).add_(value, alpha=0.1)
        if step == 3:
            own = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            own["average"] = average
            own.pop(forgotten, None)
            torch.save(own, folder / "own.pt")
            replay.save(folder, step=4)
    print(sum(value.sum().item() for value in average.values()))


@pytest.mark.parametrize("forgotten", FORGOTTEN)
def test_the_plan_lists_what_a_checkpoint_lacks_and_how_to_add_it(tmp_path, forgotten):
    plan = replay_plan(lambda: forgetful(tmp_path, forgotten))

    action, text = FORGOTTEN[forgotten]
    assert {row.action for row in plan.missing} == {action}, str(plan)
    assert all(text in f"{row.what} {row.reason}" for row in plan.missing), str(plan)
    assert "MISSING" in str(plan)
    assert "missing: a restarted training would differ from the original" in str(plan)


def test_the_plan_of_a_complete_checkpoint_has_no_missing_entries(tmp_path):
    plan = replay_plan(lambda: forgetful(tmp_path))

    assert plan.missing == (), str(plan)
    assert "own checkpoint (torch.save)" in str(plan)
    actions = {row.action for row in plan.rows}
    assert actions == {"save", "regenerate", "recompute"}
    [order] = [row for row in plan.rows if "fast_forward of 'shuffle'" in row.reason]
    assert order.bytes >= 5056
    [data] = [row for row in plan.rows if row.action == "recompute"]
    assert (data.bytes, data.reason) == (96, "made before the first step, and unchanged since")


def carrying(folder: Path, carried: str, saved: bool = False) -> None:
    """Six steps; what `carried` names lives through them, and is in the checkpoint if `saved`."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
    if carried == "statistics in evaluation mode":
        model.eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data, noise = torch.randn(12, 2), torch.Generator()
    replay = ReplayCheckpoint("carrying", generators={"noise": noise})
    state, losses = torch.zeros(4, 2), torch.zeros(6)
    window: list[torch.Tensor] = []
    average = [p.detach().clone() for p in model.parameters()]
    for step in range(6):
        x = data[step : step + 4] + torch.randn(4, 2, generator=noise)
        if carried == "state":
            state = 0.5 * state + x
            x = x + state
        if carried == "window":
            window = [*window, x][-3:]
            x = torch.stack(window).mean(0)
        if carried == "noise window":
            window = [*window, torch.randn(4, 2, generator=noise)][-3:]
            x = x + torch.stack(window).mean(0)
        if carried == "permutation" and step % 3 == 0:
            order = torch.randperm(4, generator=noise)
        if carried == "permutation":
            x = x[order]
        loss = model(x).square().mean()
        losses[step] = loss.detach()  # the old values are kept, but nothing is computed from them
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        optimizer.step()
        if carried == "average":
            for mean, parameter in zip(average, model.parameters(), strict=True):
                mean.lerp_(parameter.detach(), 0.1)
        if step == 4:
            own: dict[str, Any] = {"model": model.state_dict()}
            if "statistics" in carried and not saved:
                own["model"] = {k: v for k, v in own["model"].items() if "running" not in k}
            if saved:
                own |= {"state": state, "window": window, "average": average}
                own["order"] = order if carried == "permutation" else None
            torch.save(own, folder / "own.pt")
            replay.save(folder, step=5)


@pytest.mark.parametrize(
    ("carried", "action", "text"),
    [
        ("state", "save", "its value depends on earlier steps too, so repeating the last draw is"),
        ("noise window", "save", "this line has drawn again since"),
        ("window", "save", "this line has drawn again since, so repeating the last draw is not en"),
        ("permutation", "regenerate", "to ReplayCheckpoint.regenerates, and to fast_forward"),
        ("statistics", "save", "training changes it at"),
        ("average", "save", "training changes it at"),
    ],
)
def test_the_plan_says_whether_a_tensor_that_outlives_a_step_is_saved_or_drawn_again(
    tmp_path, carried, action, text
):
    plan = replay_plan(lambda: carrying(tmp_path, carried))

    assert plan.missing
    assert {row.action for row in plan.missing} == {action}, str(plan)
    assert all(text in row.reason for row in plan.missing), str(plan)


@pytest.mark.parametrize("carried", ["", "state", "window", "permutation", "statistics", "average"])
def test_the_plan_has_no_missing_entries_if_what_outlives_a_step_is_saved(tmp_path, carried):
    plan = replay_plan(lambda: carrying(tmp_path, carried, saved=True))

    assert plan.missing == (), str(plan)


def test_running_statistics_that_evaluation_mode_only_reads_are_made_again(tmp_path):
    plan = replay_plan(lambda: carrying(tmp_path, "statistics in evaluation mode"))

    assert plan.missing == (), str(plan)


def test_the_plan_of_a_training_with_exact_restarts_has_no_missing_entries(tmp_path):
    plan = replay_plan(lambda: train(tmp_path))

    assert plan.missing == (), str(plan)
    assert str(plan).startswith("replay plan of 'toy' for the checkpoint before step 6\n")


def test_a_program_without_a_checkpoint_between_two_steps_is_refused(tmp_path):
    for steps in (0, 4):
        with pytest.raises(ArgumentError, match="saved 0 ReplayCheckpoints, none of them between"):
            replay_plan(functools.partial(train, tmp_path, steps=steps))
    with pytest.raises(ArgumentError, match="saved 1 ReplayCheckpoints, none of them between"):
        replay_plan(lambda: train(tmp_path, steps=6))
    with pytest.raises(ArgumentTypeError, match="pass a function that trains a few steps"):
        replay_plan(tmp_path)
