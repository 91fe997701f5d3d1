"""Ring attention: each cp rank holds a run of positions, and keys and values go round.

The backward is written by hand: keys, values and their gradients travel once more.

Bugs, by the argument `bug`:

- "positions": each rank counts the positions of its rotary embedding from 0 (partitioning;
  NVIDIA/Megatron-LM issue 560, pull request 4075).
- "own_block": the block of a later rank is attended to, because the mask is the triangle for every
  block (partitioning, a wrong causal block; the hazard of vllm-project/vllm-omni pull request 767).
- "no_rescale": a new block is added without rescaling the old output (scaling;
  meta-pytorch/attention-gym pull request 200 mixes units of the log-sum-exp).
- "stale_keys": the backward uses this rank's own keys in every round (pipeline scheduling, stale
  values; huggingface/diffusers issue 14265).
- "row_sum": the backward subtracts the row sum of O·O instead of dO·O (huggingface/picotron
  issue 37).
- "cp_times": the loss per token is multiplied by cp, and gradients are summed over cp: they end cp
  times too large (scaling; NVIDIA/Megatron-LM issues 673 and 906, verl-project/verl issue 6609).
- "shift_after_cut": targets are shifted within each rank's run, so the last position of a run has
  none (partitioning; huggingface/transformers pull request 36607).
- "gradients_stay": gradients of keys and values do not return to their owner (communication).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from pytest_trainsafe import divides, requires

VOCABULARY, WIDTH, BATCH = 8, 4, 2

LAYOUTS: dict[str, Any] = {
    "cp_order": "contiguous",
    "loss": {"partial": ["cp"]},
    "modules": {"*": {"output": {"cp_dim": 1}}},
}


def _pass_on(tensors: list[Tensor], group: Any) -> list[Tensor]:
    """Sends tensors to the next rank of a ring, and returns those of the previous one."""
    ranks, rank = dist.get_world_size(group), dist.get_rank(group)
    if ranks == 1:
        return tensors
    after = dist.get_global_rank(group, (rank + 1) % ranks)
    before = dist.get_global_rank(group, (rank - 1) % ranks)
    arrived = [torch.empty_like(each) for each in tensors]
    operations = [dist.P2POp(dist.isend, each.contiguous(), after, group) for each in tensors]
    operations += [dist.P2POp(dist.irecv, each, before, group) for each in arrived]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    return arrived


def _scores(q: Tensor, k: Tensor, rank: int, owner: int, bug: str) -> Tensor | None:
    """Scaled scores of a block, None if all of its keys are in the future."""
    if owner > rank and bug != "own_block":
        return None
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    if owner == rank or bug == "own_block":
        length = q.shape[-2]
        future = torch.ones(length, length, dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(future, float("-inf"))
    return scores


class RingAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, group: Any, bug: str) -> Tensor:
        ranks, rank = dist.get_world_size(group), dist.get_rank(group)
        out, lse = torch.zeros_like(q), None
        keys, values = k, v
        for round_ in range(ranks):
            scores = _scores(q, keys, rank, (rank - round_) % ranks, bug)
            if scores is not None:
                block_lse = scores.logsumexp(-1, keepdim=True)
                block = (scores - block_lse).exp() @ values
                if lse is None:
                    out, lse = block, block_lse
                else:
                    merged = torch.logaddexp(lse, block_lse)
                    old = 1.0 if bug == "no_rescale" else (lse - merged).exp()
                    out = out * old + block * (block_lse - merged).exp()
                    lse = merged
            if round_ + 1 < ranks:
                keys, values = _pass_on([keys, values], group)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.group, ctx.bug = group, bug
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse = ctx.saved_tensors
        group, bug = ctx.group, ctx.bug
        ranks, rank = dist.get_world_size(group), dist.get_rank(group)
        delta = ((out if bug == "row_sum" else grad) * out).sum(-1, keepdim=True)
        grad_q, grad_k, grad_v = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        keys, values = k, v
        for round_ in range(ranks):
            used_k, used_v = (k, v) if bug == "stale_keys" else (keys, values)
            scores = _scores(q, used_k, rank, (rank - round_) % ranks, bug)
            if scores is not None:
                weights = (scores - lse).exp()
                grad_v = grad_v + weights.transpose(-1, -2) @ grad
                inner = weights * (grad @ used_v.transpose(-1, -2) - delta) / q.shape[-1] ** 0.5
                grad_q = grad_q + inner @ used_k
                grad_k = grad_k + inner.transpose(-1, -2) @ q
            if bug == "gradients_stay":
                keys, values = _pass_on([keys, values], group)
            else:
                keys, values, grad_k, grad_v = _pass_on([keys, values, grad_k, grad_v], group)
        return grad_q, grad_k, grad_v, None, None


def _rotate(x: Tensor, positions: Tensor) -> Tensor:
    """The rotary embedding of two halves."""
    half = x.shape[-1] // 2
    rates = 100.0 ** (-torch.arange(half, dtype=x.dtype, device=x.device) / half)
    angles = positions.to(x.dtype)[:, None] * rates
    cos, sin = angles.cos(), angles.sin()
    left, right = x[..., :half], x[..., half:]
    return torch.cat([left * cos - right * sin, right * cos + left * sin], -1)


class Attention(nn.Module):
    def __init__(self, group: Any, bug: str) -> None:
        super().__init__()
        self.group, self.bug = group, bug
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        q, k = _rotate(q, positions), _rotate(k, positions)
        return self.out(RingAttention.apply(q, k, v.contiguous(), self.group, self.bug))


class Writer(nn.Module):
    def __init__(self, group: Any, bug: str) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.attention = Attention(group, bug)
        self.norm = nn.RMSNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor, positions: Tensor) -> Tensor:
        x = self.embed(tokens)
        x = x + self.attention(x, positions)
        return self.head(self.norm(x))


def _share(ctx: Any, step: int, index: int, length: int, bug: str) -> tuple[Tensor, ...]:
    """This rank's tokens, targets and positions."""
    generator = torch.Generator().manual_seed(20 * step + index)
    tokens = torch.randint(VOCABULARY, (BATCH, length + 1), generator=generator)
    ranks, rank = ctx.point.size("cp"), ctx.coordinates["cp"]
    share = length // ranks
    mine = slice(rank * share, (rank + 1) * share)
    inputs, targets = tokens[:, :-1][:, mine], tokens[:, 1:][:, mine].clone()
    if bug == "shift_after_cut" and rank + 1 < ranks:
        targets[:, -1] = -100
    positions = torch.arange(length)[mine]
    if bug == "positions":
        positions = torch.arange(share)
    return inputs.contiguous(), targets, positions


@requires(divides("length", "cp"))
def train(ctx: Any, length: int = 8, bug: str = "") -> None:
    group = ctx.group("cp")
    model = Writer(group, bug).to(ctx.device, ctx.dtype)
    ctx.initialize(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ctx.watch(model, optimizer, annotations=LAYOUTS)
    for step in range(2):
        with ctx.step():
            for index in ctx.microbatches(2):
                with ctx.microbatch(index):
                    shared = _share(ctx, step, index, length, bug)
                    inputs, targets, positions = (each.to(ctx.device) for each in shared)
                    logits = model(inputs, positions)
                    total = F.cross_entropy(
                        logits.flatten(0, 1), targets.flatten(), reduction="sum"
                    )
                    loss = total / (2 * BATCH * length)
                    ctx.loss(loss)
                    if bug == "cp_times":
                        loss = loss * ctx.point.size("cp")
                    loss.backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad, group=group)
            optimizer.step()
            optimizer.zero_grad()
