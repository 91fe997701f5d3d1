"""FSDP2 over transformers' Llama, as torch documents it: every block, then the root."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.support.third_party.tokens import tokens
from tests.support.third_party.transformers_ddp import build

MICROBATCHES = 4


def train(ctx: Any, steps: int = 2, fault: str = "") -> None:
    from torch.distributed.fsdp import fully_shard

    network = build("llama").to(ctx.device, ctx.dtype)
    if ctx.point.size("dp") > 1:
        for block in network.model.layers:  # type: ignore[union-attr]
            fully_shard(block, mesh=ctx.mesh["dp"])
        fully_shard(network, mesh=ctx.mesh["dp"])
        if fault == "summed":
            network.set_gradient_divide_factor(1.0)  # type: ignore[operator]
            for block in network.model.layers:  # type: ignore[union-attr]
                block.set_gradient_divide_factor(1.0)
            for module in (network, *network.model.layers):  # type: ignore[misc, union-attr]
                module.set_force_sum_reduction_for_comms(True)
    ctx.initialize(network)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    ctx.watch(network, optimizer)
    mine = ctx.microbatches(MICROBATCHES)
    for step in range(steps):
        with ctx.step():
            for index in mine:
                with ctx.microbatch(index):
                    ids = tokens(step, index)
                    loss = network(input_ids=ids, labels=ids).loss
                    ctx.loss(loss)
                    divisor = MICROBATCHES if fault == "divided twice" else len(mine)
                    (loss / divisor).backward()
            nn.utils.clip_grad_norm_(network.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
