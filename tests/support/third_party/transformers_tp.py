"""Models of transformers, sharded by their own tensor-parallel plans when they are loaded."""

from __future__ import annotations

import tempfile
from typing import Any

import torch
from torch import nn

from tests.support.third_party.tokens import tokens
from tests.support.third_party.transformers_ddp import build

MICROBATCHES = 2


def load(ctx: Any, name: str) -> nn.Module:
    """The model, with tp from a checkpoint, as `tp_plan` requires; its values do not matter.

    A checkpoint does not contain the implementation of experts.  By default, a model with a
    tensor-parallel plan uses grouped matrix products.
    """
    whole = build(name).to(ctx.dtype)
    if ctx.point.size("tp") == 1:
        return whole
    with tempfile.TemporaryDirectory() as folder:
        whole.save_pretrained(folder)  # type: ignore[operator]
        return type(whole).from_pretrained(  # type: ignore[attr-defined]
            folder, tp_plan="auto", device_mesh=ctx.mesh["tp"], dtype=ctx.dtype,
            experts_implementation=whole.config._experts_implementation,  # type: ignore[union-attr]
        )  # fmt: skip


def train(
    ctx: Any, model: str = "llama", steps: int = 2, annotations: Any = None, fault: str = ""
) -> None:
    network = load(ctx, model)
    network.train()  # from_pretrained returns it in evaluation mode
    if fault == "doubled":
        double(network.model.layers[1])  # type: ignore[union-attr, index]
    ctx.initialize(network, annotations=annotations)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    ctx.watch(network, optimizer, annotations)
    divisor = ctx.point.size("tp") if fault == "divided" else 1
    for step in range(steps):
        with ctx.step():
            if fault == "unequal" and ctx.coordinates["tp"] == 1:
                with torch.no_grad():  # changes one rank's replica of a norm
                    network.model.layers[1].input_layernorm.weight.mul_(1.01)  # type: ignore[union-attr, index]
            for index in ctx.microbatches(MICROBATCHES):
                with ctx.microbatch(index):
                    ids = tokens(step, index)
                    loss = network(input_ids=ids, labels=ids).loss / MICROBATCHES
                    ctx.loss(loss)
                    (loss / divisor).backward()
            optimizer.step()
            optimizer.zero_grad()


def double(layer: Any) -> None:
    """Double the output of a layer, as if its sum over tp counted replicas."""
    summing = layer.mlp.experts if hasattr(layer.mlp, "experts") else layer.mlp.down_proj
    forward = summing.forward
    summing.forward = lambda *args: forward(*args) * 2
