"""Scores songs with an attention block whose output matrix is split by rows over two processes."""

from __future__ import annotations

import copy

import torch
import torch.distributed as dist
from torch import nn


class _Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous().clone()
        dist.all_reduce(grad)
        return grad


class _Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, partial):
        total = partial.contiguous().clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx, grad):
        return grad


class _ReduceInPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, partial):
        dist.all_reduce(partial.contiguous())
        return partial.view_as(partial)

    @staticmethod
    def backward(ctx, grad):
        return grad


class SplitAttention(nn.Module):
    """One head in each process; the sequence is the first axis inside."""

    def __init__(self, dim, reduce):
        super().__init__()
        rank, world = dist.get_rank(), dist.get_world_size()
        self.reduce = reduce
        qkv = torch.randn(world, 3 * dim // world, dim) / dim**0.5
        out = torch.randn(world, dim, dim // world) / dim**0.5
        self.qkv, self.out = nn.Parameter(qkv[rank].clone()), nn.Parameter(out[rank].clone())

    def forward(self, x):
        h = _Copy.apply(x).transpose(0, 1)
        q, k, v = (h @ self.qkv.T).chunk(3, dim=-1)
        q, k, v = (t.transpose(0, 1) for t in (q, k, v))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        partial = (mixed.transpose(0, 1) @ self.out.T).transpose(0, 1)
        return self.reduce(partial)


class SongScorer(nn.Module):
    def __init__(self, dim, reduce):
        super().__init__()
        self.tones = nn.Embedding(10, dim)
        self.attention = SplitAttention(dim, reduce)
        self.norm = nn.LayerNorm(dim)
        self.score = nn.Linear(dim, 1)

    def forward(self, song):
        x = self.tones(song)
        return self.score(torch.relu(self.norm(x + self.attention(x))[:, 0])).squeeze(1)

    def apart(self, song):
        """How much the scores of the two processes differ."""
        with torch.no_grad():
            score = self(song)
        ends = torch.stack([score, -score])
        dist.all_reduce(ends, dist.ReduceOp.MAX)
        return (ends[0] + ends[1]).max().item()


def saved(scorer):
    """The scorer as a checkpoint holds it: all shards, and the rest from the first process."""
    joined = copy.deepcopy(scorer)
    joined.attention.reduce = _Reduce.apply
    with torch.no_grad():
        for name, p in joined.named_parameters():
            if not name.startswith("attention"):
                dist.broadcast(p, src=0)
    return joined


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    scorer = SongScorer(size, _Reduce.apply if healthy else _ReduceInPlace.apply)
    opt = torch.optim.Adam(scorer.parameters(), lr=1e-2)
    mood = torch.randn(10)
    test = torch.randint(10, (64, 6))
    losses, apart, unseen = [], [], []
    for _ in range(50):
        song = torch.randint(10, (32, 6))
        liked = 2 * mood[song].mean(1)
        apart.append(scorer.apart(song))
        loss = (scorer(song) - liked).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
    with torch.no_grad():
        unseen.append((saved(scorer)(test) - 2 * mood[test].mean(1)).square().mean().item())
    return {"loss": losses, "apart": apart, "unseen": unseen}
