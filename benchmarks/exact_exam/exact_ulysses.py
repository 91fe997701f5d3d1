"""Sequence parallelism by all-to-all: positions are cut outside of attention, heads inside.

Bugs, by the argument `bug`:

- "order": after the all-to-all the ranks' runs of positions are laid out in the wrong order
  (partitioning; the layout of DeepSpeed-Ulysses, arXiv 2309.14509).
- "norm_early": the backward of the key norm runs before the all-to-all of its gradient
  (communication; ByteDance-Seed/VeOmni pull request 419).
- "not_returned": outputs are regrouped locally instead of by an all-to-all (communication).
- "mean_of_ranks": each rank's loss is the mean over its own valid tokens, and the means are
  averaged (scaling; hiyouga/LlamaFactory issue 10475 plans this average).
- "conv_cut": a causal convolution of each rank's run sees zeros before it instead of the last
  positions of the previous rank (C1, a dimension that may not be cut; TrainVerify, arXiv
  2506.15961; state-spaces/mamba issue 597, NVIDIA/Megatron-LM pull request 5917).
- "conv_grad": the gradient of the borrowed positions is not sent back (C2, a tensor that dangles in
  the backward).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from pytest_trainsafe import divides, requires

VOCABULARY, HEADS, SIZE, BATCH, KERNEL = 9, 2, 3, 2, 3
WIDTH = HEADS * SIZE

LAYOUTS: dict[str, Any] = {
    "cp_order": "contiguous",
    "loss": {"partial": ["cp"]},
    "modules": {"*": {"output": {"cp_dim": 1}}},
}


def _exchange(x: Tensor, group: Any, split: int, join: int, backwards: bool = False) -> Tensor:
    """Cuts a dimension over ranks and joins another one."""
    ranks = dist.get_world_size(group)
    sent = [each.contiguous() for each in x.chunk(ranks, split)]
    got = [torch.empty_like(sent[0]) for _ in range(ranks)]
    if ranks == 1:
        got = sent
    else:
        dist.all_to_all(got, sent, group=group)
    return torch.cat(got[::-1] if backwards else got, join)


class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any, split: int, join: int, backwards: bool) -> Tensor:
        ctx.told = group, join, split
        return _exchange(x, group, split, join, backwards)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        group, split, join = ctx.told
        return _exchange(grad, group, split, join), None, None, None, None


class _Halo(torch.autograd.Function):
    """The last positions of the previous rank, zeros on the first one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any, returned: bool) -> Tensor:
        ctx.group, ctx.returned, ctx.length = group, returned, x.shape[1]
        ranks, rank = dist.get_world_size(group), dist.get_rank(group)
        tails = [torch.empty_like(x[:, 1 - KERNEL :]) for _ in range(ranks)]
        dist.all_gather(tails, x[:, 1 - KERNEL :].contiguous(), group=group)
        return tails[rank - 1] if rank else torch.zeros_like(tails[0])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        ranks, rank = dist.get_world_size(ctx.group), dist.get_rank(ctx.group)
        heads = [torch.empty_like(grad) for _ in range(ranks)]
        dist.all_gather(heads, grad.contiguous(), group=ctx.group)
        whole = grad.new_zeros(grad.shape[0], ctx.length, grad.shape[2])
        if rank + 1 < ranks and ctx.returned:
            whole[:, 1 - KERNEL :] = heads[rank + 1]
        return whole, None, None


class Convolution(nn.Module):
    """A causal convolution of each channel."""

    def __init__(self, group: Any, bug: str) -> None:
        super().__init__()
        self.group, self.bug = group, bug
        self.weight = nn.Parameter(torch.empty(WIDTH, 1, KERNEL))

    def forward(self, x: Tensor) -> Tensor:
        before = _Halo.apply(x, self.group, self.bug != "conv_grad")
        if self.bug == "conv_cut":
            before = torch.zeros_like(before)
        padded = torch.cat([before, x], 1).transpose(1, 2)
        return F.conv1d(padded, self.weight, groups=WIDTH).transpose(1, 2)


class KeyNorm(torch.autograd.Function):
    """A root mean square norm over heads and channels, and then the all-to-all, in one function."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, group: Any, bug: str) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.group, ctx.bug = group, bug
        scale = torch.rsqrt(x.square().mean((2, 3), keepdim=True) + 1e-6)
        return _exchange(x * scale * weight, group, 2, 1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        back = _exchange(grad, ctx.group, 1, 2)
        if ctx.bug == "norm_early":
            # What did arrive has another order of heads and positions.
            back = grad.reshape(back.shape)
        scale = torch.rsqrt(x.square().mean((2, 3), keepdim=True) + 1e-6)
        grad_weight = (back * x * scale).sum((0, 1))
        inner = back * weight
        mean = (inner * x).mean((2, 3), keepdim=True)
        return scale * inner - x * scale**3 * mean, grad_weight, None, None


class Attention(nn.Module):
    def __init__(self, group: Any, bug: str) -> None:
        super().__init__()
        self.group, self.bug = group, bug
        self.query = nn.Linear(WIDTH, WIDTH)
        self.key = nn.Linear(WIDTH, WIDTH)
        self.value = nn.Linear(WIDTH, WIDTH)
        self.key_norm = nn.Parameter(torch.empty(HEADS, SIZE))
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        shape = *x.shape[:2], HEADS, SIZE
        q = Exchange.apply(self.query(x).view(shape), self.group, 2, 1, self.bug == "order")
        v = Exchange.apply(self.value(x).view(shape), self.group, 2, 1, False)
        k = KeyNorm.apply(self.key(x).view(shape), self.key_norm, self.group, self.bug)
        q, k, v = (each.transpose(1, 2) for each in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
        if self.bug == "not_returned":
            mixed = mixed.reshape(shape)
        else:
            mixed = Exchange.apply(mixed, self.group, 1, 2, False)
        return self.out(mixed.flatten(2))


class Mixer(nn.Module):
    def __init__(self, group: Any, bug: str) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.convolution = Convolution(group, bug)
        self.attention = Attention(group, bug)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        x = x + F.silu(self.convolution(x))
        return self.head(x + self.attention(x))


def _batch(ctx: Any, step: int, index: int, length: int) -> tuple[Tensor, Tensor, Tensor]:
    """This rank's tokens and targets, and the number of valid targets on all ranks."""
    generator = torch.Generator().manual_seed(30 * step + index)
    tokens = torch.randint(VOCABULARY, (BATCH, length + 1), generator=generator)
    targets = tokens[:, 1:].clone()
    targets[0, length // 2 + 1 :] = -100
    rank, ranks = ctx.coordinates["cp"], ctx.point.size("cp")
    mine = slice(rank * length // ranks, (rank + 1) * length // ranks)
    return tokens[:, :-1][:, mine], targets[:, mine], (targets != -100).sum()


@requires(divides("length", "cp"))
def train(ctx: Any, length: int = 8, bug: str = "") -> None:
    group = ctx.group("cp")
    model = Mixer(group, bug).to(ctx.device, ctx.dtype)
    ctx.initialize(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    ctx.watch(model, optimizer, annotations=LAYOUTS)
    for step in range(2):
        with ctx.step():
            for index in ctx.microbatches(2):
                with ctx.microbatch(index):
                    tokens, targets, valid = _batch(ctx, step, index, length)
                    logits = model(tokens.to(ctx.device)).flatten(0, 1)
                    targets = targets.flatten().to(ctx.device)
                    if bug == "mean_of_ranks":
                        loss = F.cross_entropy(logits, targets) / (2 * ctx.point.size("cp"))
                    else:
                        loss = F.cross_entropy(logits, targets, reduction="sum") / (2 * valid)
                    ctx.loss(loss)
                    loss.backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad, group=group)
            optimizer.step()
            optimizer.zero_grad()
