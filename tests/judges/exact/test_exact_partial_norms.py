"""A proof covers DTensor's norms of gradients that tp splits, beside those that tp repeats.

DTensor divides a repeated gradient's norm by sqrt(2) on each of two tp ranks, and adds up squares.
"""

from __future__ import annotations

import pytest

PROGRAM = """
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    SequenceParallel,
    parallelize_module,
)

LAYOUTS = {"modules": {"0": {"output": {"tp_dim": 1}}}}
PLAN = {
    "0": ColwiseParallel(output_layouts=Shard(1)),
    "1": SequenceParallel(),
    "2": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
}


def whole(norm):
    return norm.full_tensor() if isinstance(norm, DTensor) else norm


def train(ctx, bug=""):
    ctx.group("tp"), ctx.group("dp")
    net = nn.Sequential(nn.Linear(4, 4, bias=False), nn.LayerNorm(4), nn.Linear(4, 4, bias=False))
    net = net.to(ctx.dtype)
    if ctx.point.size("tp") > 1:
        parallelize_module(net, ctx.mesh["tp"], PLAN)
        net[2] = checkpoint_wrapper(net[2])
        fully_shard(net[2], mesh=ctx.mesh["dp"])
        fully_shard(net, mesh=ctx.mesh["dp"])
    ctx.initialize(net, annotations=LAYOUTS)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    ctx.watch(net, optimizer, annotations=LAYOUTS)
    with ctx.step():
        mine = ctx.microbatches(2)
        for index in mine:
            with ctx.microbatch(index):
                made = torch.Generator().manual_seed(index)
                loss = net(torch.randn(2, 4, 4, generator=made).to(ctx.dtype)).square().mean()
                ctx.loss(loss)
                (loss / len(mine)).backward()
        if bug == "unsummed":
            grads = [p.grad.to_local() for p in net.parameters()]
            norm = nn.utils.get_total_norm(grads)
            nn.utils.clip_grads_with_norm_(net.parameters(), 0.1, norm)
        else:
            norm = nn.utils.clip_grad_norm_(net.parameters(), 0.1)
        ctx.grad_norm(whole(norm))
        optimizer.step()
"""

TEST = """
import pytest
from program import train
from pytest_trainsafe import assert_proved_equivalent


@pytest.mark.trainsafe(train, tp=2, dp=2)
def test_clean(candidate_trace, reference_trace):
    assert_proved_equivalent(candidate_trace, reference_trace)


@pytest.mark.trainsafe(train, tp=2, dp=2, candidate_args={"bug": "unsummed"})
def test_unsummed(candidate_trace, reference_trace):
    assert_proved_equivalent(candidate_trace, reference_trace)
"""


def test_a_norm_over_tp_and_dp_is_proved_and_the_norm_of_a_ranks_own_part_is_refuted(
    pytester: pytest.Pytester, without_hypothesis: None, shared_fork_server: None
) -> None:
    pytester.makepyfile(program=PROGRAM, test_it=TEST)
    result = pytester.runpytest_inprocess(
        "--trainsafe-launcher=threads", "--trainsafe-localize=0", "--basetemp=base"
    )
    result.assert_outcomes(passed=1, failed=1)
    assert any("starts at     0.weight · main_grad" in line for line in result.outlines)
