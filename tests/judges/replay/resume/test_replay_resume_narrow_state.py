"""A state that a resume loads in another dtype is found, as torch does with NAdam's product.

`torch.optim.Optimizer.load_state_dict` casts floating-point state to the parameter's dtype
(pytorch/pytorch#43706).  NAdam keeps its product of momenta in float32.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from pytest_trainsafe import TrainsafeFailure, assert_resumable
from pytest_trainsafe.config.settings import Settings
from tests.support.replay.in_process import traces_here


def train(ctx: Any, kind: str = "NAdam") -> None:
    """Four steps, saved and loaded with torch.save and load_state_dict."""
    model = nn.Linear(4, 1).to(ctx.device, ctx.dtype)
    ctx.initialize(model)
    optimizer = getattr(torch.optim, kind)(model.parameters(), lr=0.01)
    ctx.watch(model, optimizer)
    with ctx.load() as folder:
        if folder is not None:
            state = torch.load(folder / f"rank{ctx.rank}.pt")
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
    for step in ctx.steps(4):
        with ctx.step(), ctx.microbatch(0):
            x = torch.linspace(-1, 1 + step, 8, dtype=torch.float32).reshape(2, 4).to(ctx.dtype)
            loss = model(x).square().mean()
            loss.backward()
            ctx.loss(loss)
            optimizer.step()
            optimizer.zero_grad()
        with ctx.save() as folder:
            if folder is not None:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save(state, folder / f"rank{ctx.rank}.pt")


def nadam(ctx: Any) -> None:
    train(ctx)


def adam(ctx: Any) -> None:
    train(ctx, "Adam")


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_a_product_of_momenta_that_is_loaded_in_another_dtype_is_found(
    tmp_path: Path, dtype: str
) -> None:
    traces = traces_here(nadam, tmp_path, Settings(dtypes=(dtype,)))

    with pytest.raises(TrainsafeFailure, match="mu_product"):
        assert_resumable(traces, at_step=2)


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_an_optimizer_whose_state_keeps_its_dtype_resumes(tmp_path: Path, dtype: str) -> None:
    assert_resumable(traces_here(adam, tmp_path, Settings(dtypes=(dtype,))), at_step=2)
