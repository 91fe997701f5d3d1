"""Models of transformers, sharded by their own tensor-parallel plans when they are loaded."""

from __future__ import annotations

import tempfile
from typing import Any

import torch
from tokens import tokens
from torch import nn
from transformers_ddp import build

MICROBATCHES = 2


def load(ctx: Any, name: str) -> nn.Module:
    """The model from a checkpoint, as `tp_plan` wants it; its values do not matter."""
    whole = build(name).to(ctx.dtype)
    if ctx.point.size("tp") == 1:
        return whole
    with tempfile.TemporaryDirectory() as folder:
        whole.save_pretrained(folder)  # type: ignore[operator]
        return type(whole).from_pretrained(  # type: ignore[attr-defined,no-any-return]
            folder, tp_plan="auto", device_mesh=ctx.mesh["tp"], dtype=ctx.dtype
        )


def train(
    ctx: Any, model: str = "llama", steps: int = 2, annotations: Any = None, fault: str = ""
) -> None:
    network = load(ctx, model)
    ctx.initialize(network, annotations=annotations)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    ctx.watch(network, optimizer, annotations)
    if fault and ctx.point.size("tp") > 1:
        plant(ctx, network, fault)
    for step in range(steps):
        with ctx.step():
            for index in ctx.microbatches(MICROBATCHES):
                with ctx.microbatch(index):
                    ids = tokens(step, index)
                    loss = network(input_ids=ids, labels=ids).loss / MICROBATCHES
                    ctx.loss(loss)
                    loss.backward()
            optimizer.step()
            optimizer.zero_grad()


def plant(ctx: Any, network: Any, fault: str) -> None:
    layer = network.model.layers[1]
    if fault == "doubled":  # a sum over ranks of what every rank already has
        layer.mlp.down_proj.register_forward_hook(lambda *args: args[-1] * 2)
    elif ctx.coordinates["tp"] == 1:  # "unequal": one rank's replica of a norm is another's
        with torch.no_grad():
            layer.input_layernorm.weight.mul_(1.01)
