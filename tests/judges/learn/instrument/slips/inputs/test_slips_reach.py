"""Slips in what first layers and losses get are noticed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from tests.support.learn.slips import net, sgd, slips_of

Loss = Callable[[Tensor], Tensor]


@pytest.mark.parametrize(
    ("loss", "slips"),
    [
        (lambda y: F.mse_loss(y.sigmoid(), torch.full_like(y, 3.0)), ["target-out-of-reach"]),
        (
            lambda y: F.l1_loss(y.relu(), torch.linspace(-1, 1, 16).view(8, 2)),
            ["target-out-of-reach"],
        ),
        (lambda y: F.mse_loss(y.tanh(), torch.linspace(-1, 1, 16).view(8, 2)), []),
        (lambda y: F.mse_loss(y, torch.full_like(y, 3.0)), []),
        (lambda y: F.nll_loss(y.log_softmax(0), torch.arange(8) % 2), ["softmax-over-batch"]),
        (lambda y: F.nll_loss(y.log_softmax(1), torch.arange(8) % 2), []),
        (
            lambda y: F.binary_cross_entropy(y[:, :1].softmax(1), torch.ones(8, 1)),
            ["softmax-of-one"],
        ),
        (lambda y: F.binary_cross_entropy(y[:, :1].sigmoid(), torch.ones(8, 1)), []),
    ],
)
def test_targets_and_activations(loss: Loss, slips: list[str]) -> None:
    def program() -> None:
        model = net()
        optimizer = sgd(model)
        for _ in range(2):
            optimizer.zero_grad()
            loss(model(torch.randn(8, 4))).backward()
            optimizer.step()

    own = ("target-out-of-reach", "softmax-over-batch", "softmax-of-one")
    assert [each for each in slips_of(program) if each in own] == slips


@pytest.mark.parametrize(("first", "slips"), [(0, ["blank-labelled"]), (1, [])])
def test_the_blank_of_ctc(first: int, slips: list[str]) -> None:
    def program() -> None:
        model = nn.Linear(4, 5)
        optimizer = sgd(model)
        for _ in range(2):
            optimizer.zero_grad()
            scores = model(torch.randn(10, 3, 4)).log_softmax(-1)
            labels = torch.tensor([[1, 2, 3], [3, first, 0], [4, first, 2]])
            F.ctc_loss(scores, labels, torch.full((3,), 10), torch.tensor([3, 2, 3])).backward()
            optimizer.step()

    assert slips_of(program) == slips


class Bright(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale, self.first = scale, nn.Conv2d(3, 2, 3)

    def forward(self, images: Tensor) -> Tensor:
        found: Tensor = self.first(images / self.scale)
        return found


@pytest.mark.parametrize(
    ("scale", "alike", "slips"),
    [(1.0, False, ["pixels-unscaled"]), (255.0, False, []), (255.0, True, ["rows-alike"])],
)
def test_images(scale: float, alike: bool, slips: list[str]) -> None:
    def program() -> None:
        images = torch.randint(0, 256, (8, 3, 6, 6)).float()
        if alike:
            images = images[:1].repeat(8, 1, 1, 1)
        model = Bright(scale)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
        for (batch,) in DataLoader(TensorDataset(images), batch_size=4):
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()

    assert slips_of(program) == slips


@pytest.mark.parametrize(("times", "wrong"), [(1, False), (2, True)])
def test_pixels_that_are_scaled_twice(times: int, wrong: bool) -> None:
    def program() -> None:
        model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(72, 2))
        optimizer = sgd(model)
        for _ in range(2):
            pixels = torch.randint(0, 256, (4, 1, 8, 8)).float() / 255**times
            optimizer.zero_grad()
            model(pixels).square().mean().backward()
            optimizer.step()

    assert slips_of(program) == ["pixels-twice"] * wrong


def test_a_loss_of_one_class() -> None:
    def program() -> None:
        model = nn.Linear(4, 1)
        optimizer = sgd(model)
        for _ in range(2):
            optimizer.zero_grad()
            nn.functional.cross_entropy(
                model(torch.randn(8, 4)), torch.zeros(8, dtype=torch.long)
            ).backward()
            optimizer.step()

    assert slips_of(program) == ["softmax-of-one"]


@pytest.mark.parametrize(
    ("how", "slips"),
    [
        ("reshaped", ["channels-mixed"]),
        ("permuted", []),
        ("noise", []),
        ("striped", []),
    ],
)
def test_the_channels_of_an_image(how: str, slips: list[str]) -> None:
    colours = torch.tensor([[40.0, 90.0, 160.0], [200.0, 180.0, 120.0], [70.0, 140.0, 60.0]])

    def images() -> Tensor:
        if how == "noise":
            return torch.randn(8, 3, 12, 12)
        if how == "striped":
            return (
                torch.randn(8, 3, 12, 1) + torch.randn(12).sign() + 0.1 * torch.randn(8, 3, 12, 12)
            )
        last = colours[torch.randint(3, (8,))][:, None, None] + 30 * torch.randn(8, 12, 12, 3)
        first = last.permute(0, 3, 1, 2) if how == "permuted" else last.reshape(8, 3, 12, 12)
        return first / 100 - 1

    def program() -> None:
        model = nn.Sequential(nn.Conv2d(3, 2, 3), nn.Flatten(), nn.Linear(200, 2))
        optimizer = sgd(model)
        for _ in range(2):
            optimizer.zero_grad()
            model(images()).square().mean().backward()
            optimizer.step()

    assert slips_of(program) == slips
