"""A training loop as accelerate's documentation writes it: it wraps model, data and optimizer."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import DataLoader

from tests.support.third_party.tokens import BATCH, tokens
from tests.support.third_party.transformers_ddp import build

MICROBATCHES = 4


def sequences(steps: int) -> torch.Tensor:
    """The sequences of all micro-batches, one after the other."""
    return torch.cat([tokens(step, i) for step in range(steps) for i in range(MICROBATCHES)])


def train(ctx: Any, steps: int = 2, fault: str = "") -> None:
    from accelerate import Accelerator

    ranks, rank = ctx.point.size("dp"), ctx.coordinates["dp"]
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=MICROBATCHES // ranks)
    network = build("gpt2").to(ctx.dtype)
    ctx.initialize(network)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    loader: Any = DataLoader(sequences(steps), batch_size=BATCH)  # type: ignore[arg-type]
    model, optimizer, loader = accelerator.prepare(network, optimizer, loader)
    ctx.watch(model, optimizer)
    data = iter(loader)  # every rank gets each `ranks`-th batch
    for _ in range(steps):
        with ctx.step():
            for turn in range(MICROBATCHES // ranks):
                with ctx.microbatch(turn * ranks + rank), accelerator.accumulate(model):
                    ids = next(data)
                    loss = model(input_ids=ids, labels=ids).loss
                    ctx.loss(loss)
                    if fault == "divided twice":
                        loss = loss / accelerator.gradient_accumulation_steps
                    accelerator.backward(loss)
                    if accelerator.sync_gradients:
                        norm = accelerator.clip_grad_norm_(network.parameters(), 0.5)
                        ctx.grad_norm(norm)
                    if fault == "every micro-batch" and not accelerator.sync_gradients:
                        optimizer.optimizer.step()
                    optimizer.step()
                    optimizer.zero_grad()
