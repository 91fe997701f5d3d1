"""Slips in how ranks exchange gradients and what they gather are noticed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from tests.support.learn.slips import loss_of, net, sgd, slips_of

pytestmark = pytest.mark.usefixtures("_group")


@pytest.fixture
def _group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("what", "slips"),
    [("gradients", ["averaged-twice"]), ("norms", []), ("without the wrapper", [])],
)
def test_gradients_that_are_reduced_by_hand(what: str, slips: list[str]) -> None:
    def program() -> None:
        inner = net()
        model = inner if what == "without the wrapper" else DistributedDataParallel(inner)
        optimizer = sgd(model)
        for _ in range(2):
            optimizer.zero_grad()
            loss_of(model).backward()
            for each in inner.parameters():
                assert each.grad is not None
                dist.all_reduce(each.grad.norm() if what == "norms" else each.grad.data)
            optimizer.step()

    assert slips_of(program) == slips


@pytest.mark.parametrize(
    ("how", "slips"),
    [
        ("plain", ["gathered-without-gradient"]),
        ("own part", []),
        ("detached", []),
        ("logged", []),
    ],
)
def test_features_that_are_gathered_for_a_loss(how: str, slips: list[str]) -> None:
    def gathered(mine: Tensor) -> Tensor:
        parts = [torch.empty_like(mine)]
        dist.all_gather(parts, mine.detach() if how == "detached" else mine)
        if how == "own part":
            parts[0] = mine
        return torch.cat(parts)

    def program() -> None:
        model = net()
        optimizer = sgd(model)
        for _ in range(2):
            optimizer.zero_grad()
            mine = model(torch.randn(8, 4))
            other = mine if how == "logged" else gathered(mine)
            (mine @ other.T).square().mean().backward()
            optimizer.step()
            if how == "logged":
                gathered(mine)

    assert slips_of(program) == slips


@pytest.mark.parametrize("last", [False, True])
def test_a_last_micro_batch_in_a_closure(last: bool) -> None:
    def program() -> None:
        inner = net()
        model = DistributedDataParallel(inner)
        optimizer = sgd(inner)

        def closure() -> Tensor:
            with model.no_sync() if last else contextlib.nullcontext():
                loss = loss_of(model)
                loss.backward()
            return loss

        for _ in range(2):
            optimizer.zero_grad()
            with model.no_sync():
                loss_of(model).backward()
            optimizer.step(closure)

    assert slips_of(program) == ["not-synchronised"] * last


class _Sum(torch.autograd.Function):
    """A sum over ranks with a gradient."""

    @staticmethod
    def forward(ctx: object, given: Tensor) -> Tensor:
        found = given.clone()
        dist.all_reduce(found)
        return found

    @staticmethod
    def backward(ctx: object, *gradients: Tensor) -> Tensor:
        return gradients[0]


def _summed(given: Tensor) -> Tensor:
    found: Tensor = _Sum.apply(given)
    return found


@pytest.mark.parametrize(
    ("how", "slips"),
    [("inside", ["reduced-without-gradient"]), ("logged", []), ("with gradients", [])],
)
@pytest.mark.filterwarnings("ignore:.*autograd kernel was not registered")
def test_a_tensor_that_is_reduced_within_a_loss(how: str, slips: list[str]) -> None:
    def program() -> None:
        model = net()
        optimizer = sgd(model)
        for _ in range(2):
            optimizer.zero_grad()
            mean = loss_of(model) * 1.0
            if how == "with gradients":
                mean = _summed(mean)
            else:
                dist.all_reduce(mean)
            (mean if how == "logged" else mean.square()).backward()
            optimizer.step()

    assert slips_of(program) == slips
