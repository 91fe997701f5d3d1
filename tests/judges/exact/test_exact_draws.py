"""Draws with probabilities or means that the model computes are decided as in the real Run."""

from __future__ import annotations

import pytest

PROGRAM = """
import torch
import torch.distributed as dist
from torch import nn


def train(ctx, slope=1.0):
    net = nn.Linear(6, 4, dtype=ctx.dtype)
    ctx.initialize(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    ctx.watch(net, optimizer)
    with ctx.step():
        for index in ctx.microbatches(2):
            with ctx.microbatch(index):
                made = torch.Generator().manual_seed(index)
                x = torch.randn(5, 6, generator=made, dtype=ctx.dtype)
                hidden = torch.tanh(net(x))
                level = slope * hidden.detach()
                kept = torch.bernoulli(torch.sigmoid(level), generator=made)
                chosen = torch.multinomial(torch.softmax(level, 1), 1, generator=made)
                noisy = torch.normal(level, 1.0, generator=made)
                loss = (hidden * kept * (1 + chosen) + hidden * noisy).square().mean()
                ctx.loss(loss)
                loss.backward()
        if ctx.point.size("dp") > 1:
            for each in net.parameters():
                dist.all_reduce(each.grad, group=ctx.group("dp"))
        optimizer.step()
"""

TEST = """
import pytest
from program import train
from pytest_trainsafe import assert_proved_equivalent


@pytest.mark.trainsafe(train, dp=2)
def test_alike(candidate_trace, reference_trace):
    assert_proved_equivalent(candidate_trace, reference_trace)


@pytest.mark.trainsafe(train, dp=2, candidate_args={"slope": -4.0})
def test_other(candidate_trace, reference_trace):
    assert_proved_equivalent(candidate_trace, reference_trace)
"""


def test_equal_probabilities_are_proved_and_others_refuted(
    pytester: pytest.Pytester, without_hypothesis: None, shared_fork_server: None
) -> None:
    pytester.makepyfile(program=PROGRAM, test_it=TEST)
    result = pytester.runpytest_inprocess(
        "--trainsafe-launcher=threads", "--trainsafe-localize=0", "--basetemp=base"
    )
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*confirmed     float64 refutes it too*"])
