"""torchtitan's Llama, parallelised by torchtitan's own functions: FSDP2, and tensor with sequence
parallelism."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from tests.support.third_party.tokens import LENGTH, VOCABULARY, tokens

MICROBATCHES = 4


def build(ctx: Any) -> nn.Module:
    from torchtitan.models.llama3.model.args import TransformerModelArgs
    from torchtitan.models.llama3.model.model import Transformer

    torch.set_default_dtype(
        ctx.dtype
    )  # its rotary frequencies are complex: .to() would drop a part
    return Transformer(
        TransformerModelArgs(
            dim=32, n_layers=2, n_heads=4, vocab_size=VOCABULARY, multiple_of=16,
            max_seq_len=LENGTH,
        )
    ).to(ctx.device)  # fmt: skip


def parallelise(ctx: Any, network: nn.Module) -> None:
    from torch.distributed.fsdp import FSDPModule
    from torchtitan.models.llama3.infra.parallelize import apply_fsdp, apply_tp

    if ctx.point.size("tp") > 1:
        apply_tp(network, ctx.mesh["tp"], loss_parallel=False, enable_float8_tensorwise_tp=False)
    if ctx.point.size("dp") > 1:
        apply_fsdp(network, ctx.mesh["dp"], ctx.dtype, ctx.dtype, pp_enabled=False)
        for module in network.modules():
            if isinstance(module, FSDPModule):  # gloo cannot divide while it sums
                module.set_force_sum_reduction_for_comms(True)


def train(ctx: Any, steps: int = 2, annotations: Any = None, fault: str = "") -> None:
    ctx.point.get("sp", False)  # its tensor parallelism is sequence parallelism too
    network = build(ctx)
    parallelise(ctx, network)
    ctx.initialize(network, annotations=annotations)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    ctx.watch(network, optimizer, annotations)
    if fault == "never synchronised":
        network.set_requires_gradient_sync(False)  # type: ignore[operator]
    mine = ctx.microbatches(MICROBATCHES)
    for step in range(steps):
        with ctx.step():
            if fault == "unequal" and ctx.coordinates["tp"]:
                with torch.no_grad():  # changes this rank's replica of the norm's scale
                    network.layers["1"].ffn_norm.weight.to_local().mul_(1.01)  # type: ignore[index, union-attr]
            for index in mine:
                with ctx.microbatch(index):
                    ids = tokens(step, index)
                    logits = network(ids)
                    # torchtitan disables FSDP2's division; the loss is divided for all ranks.
                    divisor = len(mine) if fault == "averaged" else MICROBATCHES
                    loss = cross_entropy(logits.flatten(0, 1), ids.flatten()) / divisor
                    ctx.loss(loss)
                    loss.backward()
            norm = nn.utils.clip_grad_norm_(network.parameters(), 0.5)
            ctx.grad_norm(norm)
            optimizer.step()
            optimizer.zero_grad()
