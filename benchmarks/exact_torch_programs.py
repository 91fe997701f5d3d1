"""Small programs that train by torch's own parallelism, for `bench_exact_torch.py`."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

VOCABULARY, LENGTH, BATCH, WIDTH = 12, 6, 2, 8
MICROBATCHES, STEPS = 4, 2


class Block(nn.Module):
    """A gated mixer of the sequence, and an MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.down(F.gelu(self.up(self.norm(x))))
        return x + result


class Network(nn.Module):
    """Tokens to logits, with positions that the blocks see."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        result: Tensor = self.head(self.norm(x))
        return result


def batch(step: int, index: int) -> tuple[Tensor, Tensor]:
    """Tokens and targets of a micro-batch, by its number in the whole step."""
    generator = torch.Generator().manual_seed(1000 * step + index)
    text = torch.randint(VOCABULARY, (BATCH, LENGTH + 1), generator=generator)
    return text[:, :-1], text[:, 1:]


def optimizer_of(name: str, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """An optimizer of torch; Muon trains matrices alone."""
    if name == "Muon":
        parameters = [each for each in parameters if each.ndim == 2]
    made: torch.optim.Optimizer = getattr(torch.optim, name)(parameters, lr=0.01)
    return made


def wrapped(ctx: Any, way: str, model: nn.Module) -> nn.Module:
    """The model under one of torch's data parallel wrappers."""
    if way.startswith("fsdp"):
        from torch.distributed.fsdp import fully_shard

        reshard = way != "fsdp, not resharded"
        for module in (*model.blocks, model):  # type: ignore[misc]
            fully_shard(module, mesh=ctx.mesh["dp"], reshard_after_forward=reshard)
        return model
    if way == "replicate":
        from torch.distributed._composable.replicate import replicate

        return replicate(model, process_group=ctx.group("dp"))
    return DistributedDataParallel(
        model,
        process_group=ctx.group("dp"),
        static_graph=way == "ddp, static graph",
        gradient_as_bucket_view=way == "ddp, views of buckets",
        bucket_cap_mb=0.0005 if way == "ddp, small buckets" else None,
    )


def data_parallel(
    ctx: Any, way: str = "ddp", optimizer: str = "AdamW", clip: float = 0.1, bug: str = ""
) -> None:
    """Gradients are averaged over dp by a wrapper of torch; with the bug "summed", they are not."""
    model: nn.Module = Network().to(ctx.dtype)
    ctx.initialize(model)
    called = wrapped(ctx, way, model) if ctx.point.size("dp") > 1 else model
    made: Any = optimizer_of(optimizer, list(model.parameters()))
    ctx.watch(called, made)
    mine = ctx.microbatches(MICROBATCHES)
    divisor = 1 if bug == "summed" else len(mine)
    for step in range(STEPS):
        with ctx.step():
            for index in mine:
                later: AbstractContextManager[None] = nullcontext()
                # With a static graph, DistributedDataParallel must reduce in the first backward.
                if isinstance(called, DistributedDataParallel) and "static" not in way:
                    later = nullcontext() if index == mine[-1] else called.no_sync()
                with ctx.microbatch(index), later:
                    tokens, targets = batch(step, index)
                    loss = F.cross_entropy(called(tokens).flatten(0, 1), targets.flatten())
                    ctx.loss(loss)
                    (loss / divisor).backward()
            ctx.grad_norm(nn.utils.clip_grad_norm_(model.parameters(), clip))
            made.step()
            made.zero_grad()


#: The outputs that are plain tensors; those of norms under sequence parallelism are DTensors.
_CUT = {"up": {"output": {"tp_dim": -1}}}
_STREAM = {
    name: {"output": {"sp_dim": 1}} for name in ("embedding", "blocks.#", "down", "blocks.#.down")
}


def tensor_parallel(ctx: Any, parts_of_loss: bool = False, clip: float = 0.1) -> None:
    """`parallelize_module`, with the axis sp along the sequence, and with a parallel loss.

    torch cannot clip DTensors beside plain tensors, which norms have without sp; then clip is 0.
    """
    model = Network().to(ctx.dtype)
    sp = bool(ctx.point.get("sp", False))
    parallel = ctx.point.size("tp") > 1
    if parallel:
        _parallelize(ctx, model, sp, parts_of_loss)
    ctx.initialize(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=False)
    annotations = {"modules": {**_CUT, **(_STREAM if sp else {})}}
    ctx.watch(model, optimizer, annotations=annotations if parallel else None)
    for step in range(STEPS):
        with ctx.step():
            for index in ctx.microbatches(2):
                with ctx.microbatch(index):
                    tokens, targets = batch(step, index)
                    over = loss_parallel() if parts_of_loss and parallel else nullcontext()
                    with over:
                        logits = model(tokens)
                        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten()) / 2
                        ctx.loss(_whole(loss))
                        loss.backward()
            if clip:
                norm = nn.utils.clip_grad_norm_(model.parameters(), clip)
                ctx.grad_norm(_whole(norm))
            optimizer.step()
            optimizer.zero_grad()


def _whole(x: Tensor) -> Tensor:
    return x.full_tensor() if isinstance(x, DTensor) else x


def _parallelize(ctx: Any, model: Network, sp: bool, parts_of_loss: bool) -> None:
    mesh = ctx.mesh["tp"]
    stream = Shard(1) if sp else Replicate()
    last = Shard(-1) if parts_of_loss else Replicate()
    plan: dict[str, ParallelStyle] = {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=stream),
        "head": ColwiseParallel(
            input_layouts=stream, output_layouts=last, use_local_output=not parts_of_loss
        ),
    }
    if sp:
        plan["norm"] = SequenceParallel()
    parallelize_module(model, mesh, plan)
    for block in model.blocks:
        inner: dict[str, ParallelStyle] = {
            "up": ColwiseParallel(),
            "down": RowwiseParallel(output_layouts=stream),
        }
        if sp:
            inner["norm"] = SequenceParallel()
            inner["up"] = ColwiseParallel(input_layouts=Shard(1))
        parallelize_module(block, mesh, inner)
