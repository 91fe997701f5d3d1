"""A Llama-like model, made tensor and sequence parallel by `parallelize_module`.

The idea is that of PyTorch's tensor parallel tutorial: projections are cut by columns and rows, and
with sequence parallelism, norms and the residual stream hold a part of the sequence on each rank.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from pytest_trainsafe import Context, divides, requires

VOCABULARY, LENGTH, BATCH, WIDTH, HEAD = 24, 8, 2, 16, 4

# The outputs that are plain tensors; those of norms are DTensors.
ANNOTATIONS = {
    "modules": {
        "tok_embeddings": {"output": {"sp_dim": 1}},
        "layers.#": {"output": {"sp_dim": 1}},
        "attention": {"output": {"sp_dim": 1}},
        "attention.wq": {"output": {"tp_dim": -1}},
        "attention.wk": {"output": {"tp_dim": -1}},
        "attention.wv": {"output": {"tp_dim": -1}},
        "attention.wo": {"output": {"sp_dim": 1}},
        "feed_forward": {"output": {"sp_dim": 1}},
        "feed_forward.w1": {"output": {"tp_dim": -1}},
        "feed_forward.w3": {"output": {"tp_dim": -1}},
        "feed_forward.w2": {"output": {"sp_dim": 1}},
    }
}


class RMSNorm(nn.Module):
    """A norm without a mean."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * self.weight


def rotate(x: Tensor) -> Tensor:
    """Rotary positions on [batch, heads, sequence, size of a head]."""
    length, half = x.shape[-2], x.shape[-1] // 2
    frequency = 100.0 ** (-torch.arange(half, device=x.device, dtype=torch.float64) / half)
    angle = torch.arange(length, device=x.device, dtype=torch.float64)[:, None] * frequency
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    left, right = x[..., :half], x[..., half:]
    return torch.cat((left * cos - right * sin, left * sin + right * cos), dim=-1)


class Attention(nn.Module):
    """Causal attention; a rank has some of the heads of queries, and of keys and values."""

    def __init__(self, width: int, fault: str) -> None:
        super().__init__()
        self.width, self.fault = width, fault
        self.wq = nn.Linear(width, width, bias=False)
        self.wk = nn.Linear(width, width // 2, bias=False)
        self.wv = nn.Linear(width, width // 2, bias=False)
        self.wo = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            projection.view(*projection.shape[:2], -1, HEAD).transpose(1, 2)
            for projection in (self.wq(x), self.wk(x), self.wv(x))
        )
        groups = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
        scale = HEAD**-0.5
        if self.fault == "softmax-scale":
            scale = (self.width // q.shape[1]) ** -0.5  # fault: softmax-scale
        y = F.scaled_dot_product_attention(rotate(q), rotate(k), v, is_causal=True, scale=scale)
        return self.wo(y.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """A gated MLP."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.w1 = nn.Linear(width, 2 * width, bias=False)
        self.w2 = nn.Linear(2 * width, width, bias=False)
        self.w3 = nn.Linear(width, 2 * width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    """Attention and the gated MLP, each with its norm before it."""

    def __init__(self, width: int, fault: str) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(width)
        self.attention = Attention(width, fault)
        self.ffn_norm = RMSNorm(width)
        self.feed_forward = FeedForward(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.ffn_norm(x))


class Llama(nn.Module):
    """Tokens to logits."""

    def __init__(self, width: int, layers: int, fault: str) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(VOCABULARY, width)
        self.layers = nn.ModuleList(Block(width, fault) for _ in range(layers))
        self.norm = RMSNorm(width)
        self.output = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tok_embeddings(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.output(self.norm(x))


def parallelize(ctx: Context, model: Llama, sp: bool, fault: str) -> None:
    """Cut the model over tp, with sp also the residual stream, along the sequence."""
    mesh = ctx.mesh["tp"]
    stream = Shard(1) if sp else Replicate()
    norm = {"norm": SequenceParallel()} if sp else {}
    parallelize_module(
        model,
        mesh,
        {
            "tok_embeddings": RowwiseParallel(input_layouts=Replicate(), output_layouts=stream),
            "output": ColwiseParallel(input_layouts=stream, output_layouts=Replicate()),
            **norm,
        },
    )
    for layer in model.layers:
        plan: dict[str, ParallelStyle] = {
            "attention.wq": ColwiseParallel(),
            "attention.wk": ColwiseParallel(),
            "attention.wv": ColwiseParallel(),
            "attention.wo": RowwiseParallel(output_layouts=stream),
            "feed_forward.w1": ColwiseParallel(),
            "feed_forward.w2": RowwiseParallel(output_layouts=stream),
            "feed_forward.w3": ColwiseParallel(),
        }
        if sp:
            gather = PrepareModuleInput(
                input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)
            )
            plan |= {
                "attention_norm": SequenceParallel(),
                "attention": gather,
                "ffn_norm": SequenceParallel(),
                "feed_forward": gather,
            }
            if fault == "norm-not-in-plan" and ctx.world_size > 1:
                del plan["ffn_norm"]  # fault: norm-not-in-plan
        parallelize_module(layer, mesh, plan)


def reduce_gradients(ctx: Context, model: Llama, fault: str) -> None:
    """Sum gradients over dp; DTensor has summed those of the norms over tp."""
    for name, parameter in model.named_parameters():
        gradient = parameter.grad
        local = gradient.to_local() if hasattr(gradient, "to_local") else gradient
        dist.all_reduce(local, group=ctx.group("dp"))
        if fault == "norm-reduced-twice" and ctx.world_size > 1 and "norm" in name:
            dist.all_reduce(local, group=ctx.group("tp"))  # fault: norm-reduced-twice


def batch(ctx: Context, step: int, index: int) -> tuple[Tensor, Tensor]:
    """The tokens and targets of a micro-batch, by its number in the whole step."""
    generator = torch.Generator().manual_seed(1000 * step + index)
    text = torch.randint(VOCABULARY, (BATCH, LENGTH + 1), generator=generator).to(ctx.device)
    return text[:, :-1], text[:, 1:]


@requires(divides("microbatches", "dp"))
def train(ctx: Context, fault: str = "", microbatches: int = 2, steps: int = 2) -> None:
    """Train with AdamW on next-token prediction."""
    model = Llama(WIDTH, layers=2, fault=fault if ctx.world_size > 1 else "")
    model.to(ctx.device, ctx.dtype)
    if ctx.point.size("tp") > 1:
        parallelize(ctx, model, bool(ctx.point.get("sp", False)), fault)
    ctx.initialize(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, foreach=False)
    ctx.watch(model, optimizer, annotations=ANNOTATIONS if ctx.world_size > 1 else None)
    for step in range(steps):
        with ctx.step():
            for number in ctx.microbatches(microbatches):
                with ctx.microbatch(number):
                    inputs, targets = batch(ctx, step, number)
                    logits = model(inputs)
                    wide = torch.promote_types(logits.dtype, torch.float32)
                    loss = F.cross_entropy(logits.flatten(0, 1).to(wide), targets.flatten())
                    loss = loss / microbatches
                    ctx.loss(loss)
                    loss.backward()
            reduce_gradients(ctx, model, fault)
            optimizer.step()
            optimizer.zero_grad()
