"""Weights that nothing should change, and wrappers that are passed by, are noticed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from tests.support.learn.slips import loss_of, net, sgd, slips_of, steps

CONTENT = "torch.nn.Parameter.data"


@pytest.mark.parametrize("restored", [False, True])
def test_an_average_that_is_not_taken_out_again(restored: bool) -> None:
    def program() -> None:
        model = net()
        optimizer = sgd(model)
        average = [each.detach().clone() for each in model.parameters()]
        for _ in range(3):
            steps(model, optimizer, 2)
            kept = [each.detach().clone() for each in model.parameters()]
            with torch.no_grad():
                for parameter, value in zip(model.parameters(), average, strict=True):
                    parameter.copy_(value)
                loss_of(model)
                for parameter, value in zip(model.parameters(), kept, strict=True):
                    if restored:
                        parameter.copy_(value)

    assert slips_of(program, CONTENT) == ["weights-moved"] * (not restored)


def test_a_state_that_is_loaded_between_two_steps() -> None:
    def program() -> None:
        model = net()
        optimizer = sgd(model)
        best = {name: each.clone() for name, each in model.state_dict().items()}
        steps(model, optimizer, 2)
        model.load_state_dict(best)
        steps(model, optimizer, 2)

    assert slips_of(program, CONTENT) == []


@pytest.mark.parametrize("times", [1, 2])
def test_an_adapter_that_is_merged_more_than_unmerged(times: int) -> None:
    def program() -> None:
        model = net()
        first = model[0]
        assert isinstance(first, nn.Linear)
        first.requires_grad_(False)
        optimizer = torch.optim.SGD(model[3].parameters(), lr=0.1)
        for _ in range(3):
            steps(model, optimizer, 2)
            for _ in range(times):
                first.weight.data += 0.37
            first.weight.data -= 0.37

    assert slips_of(program, CONTENT) == ["frozen-moved"] * (times > 1)


class Followed(nn.Module):
    """A trained network, and a frozen copy that `follow` writes into."""

    def __init__(self) -> None:
        super().__init__()
        self.online, self.target = net(), net().requires_grad_(False)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.online(inputs) + self.target(inputs).detach()

    @torch.no_grad()
    def follow(self, how: str, step: int) -> None:
        for slow, quick in zip(self.target.parameters(), self.online.parameters(), strict=True):
            if how == "average":
                slow.mul_(0.9).add_(quick, alpha=0.1)
            elif how == "lerp":
                slow.lerp_(quick, 0.01)
            elif how == "copy" and step % 3 == 2:
                slow.copy_(quick)
            elif how == "decay":
                slow.mul_(0.99)
            elif how == "repelled":
                slow.lerp_(quick, -0.1)
            elif how == "added":
                slow.add_(quick, alpha=0.1)


@pytest.mark.parametrize(
    ("how", "early", "meant"),
    [
        ("average", False, True),
        ("lerp", True, True),
        ("copy", False, True),
        ("decay", True, False),
        ("repelled", False, False),
        ("added", False, False),
    ],
)
def test_a_frozen_copy_may_be_an_average_of_what_is_trained(
    how: str, early: bool, meant: bool
) -> None:
    def program() -> None:
        model = Followed()
        optimizer = sgd(model.online)
        for step in range(6):
            optimizer.zero_grad()
            loss_of(model).backward()
            if early:
                model.follow(how, step)
            optimizer.step()
            if not early:
                model.follow(how, step)

    assert slips_of(program, CONTENT) == ["frozen-moved"] * (not meant)


@pytest.fixture
def _group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("_group")
@pytest.mark.parametrize("how", ["through", "past"])
def test_a_forward_past_the_wrapper(how: str) -> None:
    def program() -> None:
        model = DistributedDataParallel(net())
        steps(model if how == "through" else model.module, sgd(model), 2)

    assert slips_of(program) == ["wrapper-bypassed"] * (how == "past")


@pytest.mark.usefixtures("_group")
@pytest.mark.parametrize("last", [False, True])
def test_a_last_micro_batch_in_no_sync(last: bool) -> None:
    def program() -> None:
        model: nn.Module = DistributedDataParallel(net())
        assert isinstance(model, DistributedDataParallel)
        optimizer = sgd(model)
        for _ in range(2):
            optimizer.zero_grad()
            if last:
                loss_of(model).backward()
            with model.no_sync():
                loss_of(model).backward()
            if not last:
                loss_of(model).backward()
            optimizer.step()

    assert slips_of(program) == ["not-synchronised"] * last
