"""Models of transformers under DistributedDataParallel, with gradient accumulation and clipping."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import nn
from torch.distributed._composable import replicate_with_fsdp
from torch.distributed._composable.replicate import replicate
from torch.nn.parallel import DistributedDataParallel

from tests.support.third_party.tokens import LENGTH, VOCABULARY, tokens

MICROBATCHES = 4


def build(name: str) -> nn.Module:
    from transformers import (
        GPT2Config,
        GPT2LMHeadModel,
        LlamaConfig,
        LlamaForCausalLM,
        Qwen2MoeConfig,
        Qwen2MoeForCausalLM,
    )

    common: dict[str, Any] = {"vocab_size": VOCABULARY, "use_cache": False}
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": LENGTH,
    }
    if name == "gpt2":
        dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": LENGTH}
        return GPT2LMHeadModel(GPT2Config(**sizes, **dropout, **common))
    if name == "llama":
        return LlamaForCausalLM(LlamaConfig(**sizes, **common))
    experts = {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "shared_expert_intermediate_size": 32,
    }
    model = Qwen2MoeForCausalLM(Qwen2MoeConfig(**sizes, **experts, **common))
    if name == "qwen2_moe":
        model.set_experts_implementation("eager")  # which runs in float64 too
    return model


def replicated(ctx: Any, network: nn.Module, wrapper: str) -> nn.Module:
    """The network under DistributedDataParallel, or one of torch's composable functions."""
    if wrapper == "replicate":
        return replicate(network, process_group=ctx.group("dp"))
    if wrapper == "replicate_with_fsdp":
        replicate_with_fsdp.replicate(network, mesh=ctx.mesh["dp"])
        network.set_force_sum_reduction_for_comms(True)  # type: ignore[operator] # gloo sums
        return network
    return DistributedDataParallel(network, process_group=ctx.group("dp"))


def synchronised(wrapped: Any, now: bool) -> Any:
    """A context in which `backward` reduces gradients if `now`, and else only accumulates them."""
    if isinstance(wrapped, DistributedDataParallel):
        return contextlib.nullcontext() if now else wrapped.no_sync()
    if hasattr(wrapped, "set_requires_gradient_sync"):
        wrapped.set_requires_gradient_sync(now)
    return contextlib.nullcontext()


def train(
    ctx: Any,
    model: str = "gpt2",
    steps: int = 2,
    wrapper: str = "DistributedDataParallel",
    fault: str = "",
) -> None:
    network = build(model).to(ctx.device, ctx.dtype)
    ctx.initialize(network)
    wrapped: nn.Module = network
    parallel = ctx.point.size("dp") > 1
    if parallel:
        wrapped = replicated(ctx, network, wrapper)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    ctx.watch(wrapped, optimizer)
    mine = ctx.microbatches(MICROBATCHES)
    for step in range(steps):
        with ctx.step():
            for index in mine:
                last = index == mine[-1] and fault != "never synchronised"
                with ctx.microbatch(index), synchronised(wrapped, last or not parallel):
                    ids = tokens(step, index)
                    loss = wrapped(input_ids=ids, labels=ids).loss
                    ctx.loss(loss)
                    divisor = MICROBATCHES if fault == "divided twice" else len(mine)
                    (loss / divisor).backward()
            norm = nn.utils.clip_grad_norm_(network.parameters(), 0.5)
            ctx.grad_norm(norm)
            optimizer.step()
            optimizer.zero_grad()
