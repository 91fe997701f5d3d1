"""A small causal transformer sharded with FSDP2 (`fully_shard`), on sequences of different lengths.

The idea is that of the public pretraining recipes on PyTorch: every block is a unit of FSDP, the loss
is a mean over the target tokens of the whole step, gradients accumulate unsharded until the last
micro-batch, and are clipped by a norm over all shards.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from pytest_trainsafe import Context, divides, requires

VOCABULARY, LENGTH, BATCH, IGNORED = 24, 8, 2, -100


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, -1).transpose(1, 2)
            for part in self.qkv(x).chunk(3, dim=-1)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    """Attention and an MLP, each with its norm before it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    """Tokens to logits, with learned positions."""

    def __init__(self, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(LENGTH, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.tokens(tokens) + self.positions(places)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def batch(ctx: Context, step: int, index: int) -> tuple[Tensor, Tensor]:
    """The tokens and targets of a micro-batch; higher numbers have shorter sequences."""
    generator = torch.Generator().manual_seed(1000 * step + index)
    text = torch.randint(VOCABULARY, (BATCH, LENGTH + 1), generator=generator)
    inputs, targets = text[:, :-1].clone(), text[:, 1:].clone()
    targets[:, LENGTH - index :] = IGNORED
    return inputs.to(ctx.device), targets.to(ctx.device)


def shard(ctx: Context, model: Transformer, fault: str) -> None:
    """Shard parameters over dp; gradients are reduced in float32 at least."""
    reduce_dtype = torch.promote_types(ctx.dtype, torch.float32)
    if fault == "bf16-reduce" and ctx.world_size > 1:
        reduce_dtype = torch.bfloat16  # fault: bf16-reduce
    policy = MixedPrecisionPolicy(reduce_dtype=reduce_dtype)
    for block in model.blocks:
        fully_shard(block, mesh=ctx.mesh["dp"], mp_policy=policy)
    fully_shard(model, mesh=ctx.mesh["dp"], mp_policy=policy)


def clip_gradients(ctx: Context, model: nn.Module, max_norm: float, fault: str) -> None:
    """Scale gradients down to a norm; each rank holds some of the squares under it."""
    shards = [
        p.grad.to_local() if isinstance(p.grad, DTensor) else p.grad for p in model.parameters()
    ]
    square = torch.stack([s.double().square().sum() for s in shards]).sum()
    if not (fault == "local-norm" and ctx.world_size > 1):  # fault: local-norm
        dist.all_reduce(square, group=ctx.group("dp"))
    norm = square.sqrt()
    ctx.grad_norm(norm)
    ctx.before_clip(norm, max_norm)
    scale = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for part in shards:
        part.mul_(scale.to(part.dtype))


def count_targets(ctx: Context, step: int, numbers: list[int], fault: str) -> Tensor:
    """The target tokens of a step, over which the loss is a mean."""
    counted = torch.stack([(batch(ctx, step, n)[1] != IGNORED).sum() for n in numbers]).sum()
    if fault == "local-tokens" and ctx.world_size > 1:
        return counted * ctx.point.size("dp")  # fault: local-tokens
    dist.all_reduce(counted, group=ctx.group("dp"))
    return counted


@requires(divides("microbatches", "dp"))
def train(ctx: Context, fault: str = "", microbatches: int = 4, steps: int = 2) -> None:
    """Train with AdamW; FSDP averages gradients over dp."""
    model = Transformer(width=16, heads=2, layers=2).to(ctx.device, ctx.dtype)
    sharded = ctx.world_size > 1
    if sharded:
        shard(ctx, model, fault)
    ctx.initialize(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1)
    ctx.watch(model, optimizer)
    dp = ctx.point.size("dp")
    for step in range(steps):
        with ctx.step():
            numbers = list(ctx.microbatches(microbatches))
            targets_in_step = count_targets(ctx, step, numbers, fault)
            for position, number in enumerate(numbers):
                if sharded:
                    model.set_requires_gradient_sync(position == len(numbers) - 1)
                with ctx.microbatch(number):
                    inputs, targets = batch(ctx, step, number)
                    logits = model(inputs)
                    wide = torch.promote_types(logits.dtype, torch.float32)
                    total = F.cross_entropy(
                        logits.flatten(0, 1).to(wide),
                        targets.flatten(),
                        ignore_index=IGNORED,
                        reduction="sum",
                    )
                    loss = total / targets_in_step
                    ctx.loss(loss)
                    (loss * dp).backward()  # FSDP divides by dp
            clip_gradients(ctx, model, 0.1, fault)
            optimizer.step()
            optimizer.zero_grad()
