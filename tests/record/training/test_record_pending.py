"""Outputs that are pending results of collectives are rewritten like other outputs.

Modules under torch's tensor parallelism return such outputs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed._functional_collectives import AsyncCollectiveTensor

from pytest_trainsafe.compat.tensors import is_pending
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.trace.run_spec import Rewrite

INPUT = ("activation", "1.input.0")

X = torch.linspace(-1, 1, 12).reshape(4, 3)
REWRITE = {"activation 0.output 0": Rewrite((4, 2), 0.0, 1.0)}


class Pending(nn.Linear):
    """Returns the pending result of a collective."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return AsyncCollectiveTensor(super().forward(x).detach())


def _key(id: TensorId) -> tuple[str, str]:
    return id.kind, id.path


def train(first: type[nn.Linear]) -> Any:
    def run(ctx: Any) -> None:
        model = nn.Sequential(first(3, 2), nn.Linear(2, 2)).to(ctx.dtype)
        ctx.watch(model, torch.optim.SGD(model.parameters(), lr=0.1))
        with ctx.step(), ctx.microbatch(0):
            model(X.to(ctx.dtype)).sum().backward()

    return run


def test_the_result_of_a_collective_is_pending_until_it_is_used() -> None:
    pending = AsyncCollectiveTensor(torch.ones(2))
    assert is_pending(pending)
    assert not is_pending(pending + 1)
    assert not is_pending(torch.ones(2))


def test_a_pending_output_is_rewritten_and_recognised_as_the_next_modules_input(
    record: Any,
) -> None:
    runs = [record(train(each), rewrite=REWRITE) for each in (nn.Linear, Pending)]
    for run in runs:
        [event] = [e for id, e in run.rank.tensors.items() if _key(id) == INPUT]
        assert event.layout_source == "output of 0"
    plain, pending = (run.get("activation", "1.input.0") for run in runs)
    assert torch.equal(plain, pending)
