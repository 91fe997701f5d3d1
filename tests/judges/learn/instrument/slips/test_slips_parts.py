"""Slips in parts of a training that are left out or active by mistake are noticed."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.support.learn.slips import loss_of, net, sgd, slips_of, steps


@pytest.mark.parametrize(("share", "slips"), [(0.9, ["dropout-most"]), (0.5, []), (1.0, [])])
def test_a_dropout_of_nearly_all(share: float, slips: list[str]) -> None:
    def program() -> None:
        model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(share), nn.Linear(4, 2))
        steps(model, sgd(model), 2)

    assert slips_of(program) == slips


@pytest.mark.parametrize(
    ("teacher", "slips"),
    [
        ("in training", ["teacher-in-training"]),
        ("in evaluation", []),
        ("without dropout", []),
        ("an average", []),
        ("trained in turn", []),
    ],
)
def test_the_mode_of_a_teacher(teacher: str, slips: list[str]) -> None:
    def program() -> None:
        model = net(5, dropout=0.1)
        width = 5 if teacher == "an average" else 6
        other = net(width, dropout=0.0 if teacher == "without dropout" else 0.1)
        other.train(teacher != "in evaluation")
        optimizers = [sgd(model)] + [sgd(other)] * (teacher == "trained in turn")
        for _ in range(3):
            x = torch.randn(8, 4)
            with torch.no_grad():
                target = other(x)
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss = (model(x) - target).square().mean()
            if teacher == "trained in turn":
                loss = loss + loss_of(other)
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()

    assert slips_of(program) == slips


class Centres(nn.Module):
    """A loss with weights of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.centres = nn.Parameter(torch.randn(2))

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.centres).square().mean()


@pytest.mark.parametrize("held", [False, True])
def test_a_loss_with_weights_of_its_own(held: bool) -> None:
    def program() -> None:
        model, loss = net(), Centres()
        optimizer = sgd(nn.ModuleList([model, loss]) if held else model)
        for _ in range(3):
            optimizer.zero_grad()
            loss(model(torch.randn(8, 4))).backward()
            optimizer.step()

    found = slips_of(program)
    assert ("module-held-by-nobody" in found) == (not held)
    assert not held or not found


@pytest.mark.parametrize(
    ("kind", "slips"),
    [
        ("summed", ["window-summed"]),
        ("divided", []),
        ("sum of all", []),
        ("two heads", []),
        ("same labels", []),
        ("one by one", []),
    ],
)
def test_how_micro_batches_are_added(kind: str, slips: list[str]) -> None:
    def program() -> None:
        model = nn.Linear(4, 3)
        optimizer = sgd(model)
        for _ in range(3):
            optimizer.zero_grad()
            y = model(torch.randn(6, 4))
            for part in range(3):
                labels = (torch.arange(6) + part * (kind != "same labels")) % 3
                if kind != "two heads":
                    y = model(torch.randn(6, 4))
                reduction = "sum" if kind == "sum of all" else "mean"
                loss = F.cross_entropy(y, labels, reduction=reduction)
                (loss / 3 if kind == "divided" else loss).backward(retain_graph=True)
                if kind == "one by one":
                    optimizer.step()
                    optimizer.zero_grad()
            optimizer.step()

    assert [each for each in slips_of(program) if each != "stepped-without"] == slips


@pytest.mark.parametrize("added", [False, True])
def test_parameters_that_are_unfrozen_later(added: bool) -> None:
    def program() -> None:
        model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
        model[0].requires_grad_(False)
        optimizer = torch.optim.SGD([each for each in model.parameters() if each.requires_grad])
        steps(model, optimizer, 2)
        model[0].requires_grad_(True)
        if added:
            optimizer.add_param_group({"params": list(model[0].parameters())})
        steps(model, optimizer, 2)

    assert slips_of(program) == ["thawed-unheld"] * (not added)


def test_a_trained_layer_that_goes_on_in_a_second_model() -> None:
    """The first optimizer is gone, and the other layers of the first model keep their gradients."""
    shared = nn.Linear(4, 4)
    first = nn.Sequential(shared, nn.Tanh(), nn.Linear(4, 2))

    def program() -> None:
        steps(first, sgd(first), 2)
        second = nn.Sequential(shared, nn.Tanh(), nn.Linear(4, 2), nn.Tanh(), nn.Linear(2, 2))
        steps(second, sgd(second), 2)

    assert slips_of(program) == []


class Scaled(nn.Module):
    """A layer with a scale, which may be no parameter of it."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)
        scale = torch.ones(2, requires_grad=kind != "constant")
        self.scale = nn.Parameter(scale.detach()) if kind == "parameter" else scale
        self.more = [nn.Parameter(torch.ones(2))] if kind == "list" else []

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layer(x) * self.scale
        return found * self.more[0] if self.more else found


@pytest.mark.parametrize(
    ("kind", "slips"),
    [
        ("parameter", []),
        ("constant", []),
        ("tensor", ["parameter-unregistered"]),
        ("list", ["parameter-unregistered"]),
        ("held", []),
    ],
)
def test_a_tensor_that_is_no_parameter(kind: str, slips: list[str]) -> None:
    def program() -> None:
        model = Scaled(kind)
        held = [model.scale] if kind == "held" else []
        optimizer = torch.optim.SGD([*model.parameters(), *held], lr=0.1)
        steps(model, optimizer, 3)

    assert slips_of(program) == slips
