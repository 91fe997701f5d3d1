"""torchtitan's Llama in two stages, run by a schedule of torch.distributed.pipelining."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from tests.support.third_party.titan import build
from tests.support.third_party.tokens import tokens

MICROBATCHES = 4


def mean_loss(logits: Tensor, ids: Tensor) -> Tensor:
    return cross_entropy(logits.flatten(0, 1), ids.flatten()) / MICROBATCHES


def stage_of(network: Any, rank: int, fault: str) -> nn.Module:
    """The model with every second block; torchtitan's model skips modules that are None."""
    if fault == "no residual" and rank:
        block = network.layers["1"]
        block.forward = lambda x, *args, **named: block.attention(
            block.attention_norm(x), *args, **named
        )
    for name in list(network.layers):
        if int(name) % 2 != rank:
            del network.layers[name]
    if rank:
        network.tok_embeddings = None
    else:
        network.norm = network.output = None
    return network


def train(ctx: Any, steps: int = 2, fault: str = "") -> None:
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    network, pipelined = build(ctx), ctx.point.size("pp") > 1
    if pipelined:
        network = stage_of(network, ctx.coordinates["pp"], fault)
    ctx.initialize(network)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    ctx.watch(network, optimizer)
    if pipelined:
        group = ctx.group("pp")
        stage = PipelineStage(network, group.rank(), group.size(), ctx.device, group=group)
        numbers = ctx.follow(stage, MICROBATCHES)
        schedule = Schedule1F1B(
            stage, MICROBATCHES, loss_fn=mean_loss, scale_grads=fault == "scaled"
        )
    for step in range(steps):
        with ctx.step():
            batches = [tokens(step, index) for index in range(MICROBATCHES)]
            if pipelined:
                losses: list[Tensor] = []
                ids = torch.cat(batches)
                if stage.is_first:
                    schedule.step(ids)
                else:
                    schedule.step(target=ids, losses=losses)
                for number, loss in zip(numbers, losses, strict=False):
                    ctx.loss(loss, number)
            else:
                for index in ctx.microbatches(MICROBATCHES):
                    with ctx.microbatch(index):
                        loss = mean_loss(network(batches[index]), batches[index])
                        ctx.loss(loss)
                        loss.backward()
            optimizer.step()
            optimizer.zero_grad()
