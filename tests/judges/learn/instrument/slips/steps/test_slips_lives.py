"""Optimizers that are made anew, or never step, are noticed."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from tests.support.learn.slips import loss_of, net, sgd, slips_of, steps


@pytest.mark.parametrize(
    ("kind", "slips"),
    [
        ("each step", ["optimizer-renewed"]),
        ("each epoch", ["optimizer-renewed"]),
        ("once", []),
        ("phases", []),
        ("no momentum", []),
        ("rounds", []),
    ],
)
def test_an_optimizer_that_is_made_anew(kind: str, slips: list[str]) -> None:
    def program() -> None:
        model = net()
        loader = DataLoader(TensorDataset(torch.randn(24, 4)), batch_size=8, shuffle=True)
        momentum = 0.0 if kind == "no momentum" else 0.9
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=momentum)
        for epoch in range(6):
            if kind == "rounds":
                model.load_state_dict(
                    {key: each.clone() for key, each in net().state_dict().items()}
                )
            fresh = kind in ("each epoch", "rounds", "no momentum")
            if fresh or (kind == "phases" and epoch % 2 == 0):
                optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=momentum)
            for (rows,) in loader:
                if kind == "each step":
                    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=momentum)
                optimizer.zero_grad()
                model(rows).square().mean().backward()
                optimizer.step()

    assert [each for each in slips_of(program) if each.startswith("optimizer")] == slips


@pytest.mark.parametrize(
    ("kind", "slips"),
    [
        ("each epoch", ["optimizer-renewed"]),
        ("once", []),
        ("each task", []),
        ("three epochs", []),
        ("averaged", []),
    ],
)
def test_an_optimizer_of_a_function_that_trains_for_an_epoch(kind: str, slips: list[str]) -> None:
    def program() -> None:
        model = net()
        data = torch.randn(24, 4)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for _ in range(3 if kind == "three epochs" else 6):
            if kind != "once":
                optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
            if kind == "each task":
                data = torch.randn(24, 4)
            if kind == "averaged":
                with torch.no_grad():
                    for each in model.parameters():
                        each.mul_(0.9)
            for rows in data[torch.randperm(24)].split(8):
                optimizer.zero_grad()
                model(rows).square().mean().backward()
                optimizer.step()

    assert [each for each in slips_of(program) if each.startswith("optimizer")] == slips


@pytest.mark.parametrize(
    ("kind", "slips"),
    [
        ("forgotten", ["never-steps"]),
        ("in turn", []),
        ("replaced", []),
        ("of another model", ["never-graded"]),
    ],
)
def test_one_of_two_optimizers(kind: str, slips: list[str]) -> None:
    def program() -> None:
        first, second, other = net(4), net(5), net(6)
        one, two = sgd(first), sgd(other if kind == "of another model" else second)
        three = torch.optim.SGD(second.parameters(), lr=0.1) if kind == "replaced" else two
        for _ in range(12):
            for optimizer in (one, three):
                optimizer.zero_grad()
            (loss_of(first) + loss_of(second)).backward()
            one.step()
            if kind != "forgotten":
                three.step()

    own = ("never-steps", "never-graded")
    assert [each for each in slips_of(program) if each in own] == slips


def test_a_training_of_one_optimizer_has_none_of_these() -> None:
    def program() -> None:
        model = net()
        steps(model, torch.optim.AdamW(model.parameters()), 12)

    assert slips_of(program) == []
