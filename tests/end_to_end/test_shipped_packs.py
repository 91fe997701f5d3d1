"""The shipped packs for several ranks report violations, and accept correct programs."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.usefixtures("shared_fork_server")

SHARDED = """
def train(ctx, faulty=False, steps=3):
    import torch
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(ctx.seed)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
    fully_shard(model, mesh=DeviceMesh.from_group(ctx.group("dp"), "cpu"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    ctx.watch(model, optimizer, level="step")
    torch.manual_seed(100 + ctx.rank)
    for _ in range(steps):
        with ctx.step():
            model(torch.randn(5, 4)).square().mean().backward()
            optimizer.step()
            if not faulty:
                optimizer.zero_grad()
"""

CHECKED = """
import pytest
from sharded import train as sharded
from pytest_trainsafe import TrainsafeFailure, assert_invariants, assert_trainsafe
from pytest_trainsafe.reference_models import gpt, silent_errors

replicated = silent_errors.program(silent_errors.find("x-ddp"))
split = silent_errors.program(silent_errors.find("ds-1801"))


def found(candidate_trace, *packs):
    with pytest.raises(TrainsafeFailure) as failure:
        assert_invariants(candidate_trace, *packs)
    return str(failure.value)


@pytest.mark.trainsafe(replicated, dp=2, dtype="float32", args={"faulty": True})
def test_the_packs_report_a_model_called_without_its_wrapper(candidate_trace):
    assert "is trained through the wrapper" in found(candidate_trace, "ddp", "pytorch")


@pytest.mark.trainsafe(split, tp=2, dtype="float32", args={"faulty": True})
def test_the_tensor_parallel_pack_reports_gradients_clipped_on_one_rank(candidate_trace):
    assert "stays equal on ranks" in found(candidate_trace, "tensor_parallel")


@pytest.mark.trainsafe(sharded, dp=2, dtype="float32", args={"faulty": True})
def test_the_fsdp_pack_reports_gradients_that_are_not_cleared(candidate_trace):
    assert "DTensor is cleared" in found(candidate_trace, "fsdp")


@pytest.mark.trainsafe(sharded, dp=2, dtype="float32")
def test_the_packs_accept_correct_fsdp2_training(candidate_trace):
    assert_invariants(candidate_trace, "fsdp", "pytorch")


@pytest.mark.trainsafe(gpt.train, tp=2, dtype=["float64"], packs=["pytorch", "tensor_parallel"])
def test_the_packs_accept_the_reference_gpt(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)
"""


def test_shipped_packs_report_faults_and_accept_correct_programs(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(sharded=SHARDED, test_checked=CHECKED)

    pytester.runpytest_inprocess("test_checked.py").assert_outcomes(passed=5)
