"""Programs whose ranks wait inside of a forward or keep an average are judged as in processes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

PROGRAM = """
import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.nn.functional import all_reduce
from torch.nn.parallel import DistributedDataParallel


class SyncNorm(nn.Module):
    "A batch norm over the batches of all ranks."

    def __init__(self, size, group):
        super().__init__()
        self.weight, self.group = nn.Parameter(torch.ones(size)), group

    def forward(self, x):
        mean = all_reduce(x.mean(0), group=self.group) / dist.get_world_size(self.group)
        square = all_reduce((x * x).mean(0), group=self.group) / dist.get_world_size(self.group)
        return (x - mean) * torch.rsqrt(square - mean * mean + 1e-5) * self.weight


def batch(number, dtype):
    made = torch.Generator().manual_seed(number)
    return torch.randn(8, 4, generator=made).to(dtype)


def norms(ctx, divide=False):
    group, ranks = ctx.group("dp"), ctx.point.size("dp")
    net = nn.Sequential(nn.Linear(4, 4), SyncNorm(4, group), nn.Linear(4, 2)).to(ctx.dtype)
    ctx.initialize(net)
    model = DistributedDataParallel(net, process_group=group)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    ctx.watch(model, optimizer, annotations={"modules": {"*": {"output": {"dp_dim": 0}}}})
    for step in range(2):
        with ctx.step():
            for number in ctx.microbatches(1, order="split"):
                with ctx.microbatch(number):
                    x = batch(step, ctx.dtype).chunk(ranks)[ctx.coordinates["dp"]]
                    loss = model(x).square().mean()
                    ctx.loss(loss)
                    loss.backward()
            if divide:
                for each in net.parameters():
                    each.grad.div_(ranks)
            optimizer.step()
            optimizer.zero_grad()


def averages(ctx, lost=False):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)).to(ctx.dtype)
    ctx.initialize(model)
    average = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ctx.watch(model, optimizer)
    with ctx.load() as folder:
        if folder is not None:
            saved = torch.load(folder / f"{ctx.rank}.pt")
            model.load_state_dict(saved["model"])
            if not lost:
                average.load_state_dict(saved["average"])
    for step in ctx.steps(6):
        with ctx.step():
            for number in ctx.microbatches(2):
                with ctx.microbatch(number):
                    loss = model(batch(2 * step + number, ctx.dtype)).square().mean()
                    ctx.loss(loss)
                    loss.backward()
            for each in model.parameters():
                dist.all_reduce(each.grad, group=ctx.group("dp"))
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():
                for mean, weight in zip(average.parameters(), model.parameters()):
                    mean.lerp_(weight, 0.25)
            dist.barrier()  # the averages of the ranks are not at the same step
        with ctx.save() as folder:
            if folder is not None:
                saved = {"model": model.state_dict(), "average": average.state_dict()}
                torch.save(saved, folder / f"{ctx.rank}.pt")
"""

TEST = """
import pytest
from pytest_trainsafe import assert_resumable, assert_trainsafe
from program import averages, norms


@pytest.mark.trainsafe(norms, dp=2)
def test_norms(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.trainsafe(norms, dp=2, candidate_args={"divide": True})
def test_norms_divided(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.trainsafe(averages, dp=2)
def test_averages(candidate_trace):
    assert_resumable(candidate_trace, at_step=3, steps=6)


@pytest.mark.trainsafe(averages, dp=2, args={"lost": True})
def test_averages_lost(candidate_trace):
    assert_resumable(candidate_trace, at_step=3, steps=6)
"""


def test_clean_programs_pass_and_a_divided_gradient_and_a_lost_average_fail(
    pytester: pytest.Pytester, write_ini: Callable[..., object], shared_fork_server: None
) -> None:
    """A DistributedDataParallel whose forward has collectives, and an average of the weights."""
    pytester.makepyfile(program=PROGRAM, test_it=TEST)
    write_ini()

    result = pytester.runpytest_inprocess("-q", "--trainsafe-launcher", "threads")

    result.assert_outcomes(passed=2, failed=2)
    result.stdout.fnmatch_lines(
        [
            "*_ test_norms_divided*_",
            "*0.5 times*",
            "*_ test_averages_lost*_",
            "*weights beside the watched model are not restored: on rank 0 the module Sequential*",
        ]
    )
    result.stdout.no_fnmatch_line("*raised KeyError*")
