"""Experts on different ranks: top-1 routing, an all-to-all there and back, a balancing loss.

Bugs, by the argument `bug`:

- "expert_scale": the gradient of an expert, which has the tokens of all ranks, is averaged over the
  ranks that hold it (one) instead of over dp: it is ep times too large (scaling;
  deepspeedai/DeepSpeed issue 5618 and pull request 6546, pytorch/pytorch issue 160285).
- "combine_order": returned tokens are put back in the order of experts (partitioning, a wrong
  permutation).
- "gate_after": the gate's probability multiplies the wrong tokens, because it is permuted and the
  output is not (partitioning).
- "aux_local": fractions of tokens and of probability are those of the rank's own tokens
  (communication; NVIDIA/Megatron-LM pull request 5047 and databricks/megablocks issue 85 are about
  this loss's dependence on the layout).
- "aux_scale": the gradient of the balancing loss is not divided by the number of ranks that compute
  it (scaling; NVIDIA/Megatron-LM pull request 5047).
- "expert_offset": tokens are sent as if experts lay on ranks round robin (device assignment).
- "router_no_sum": the router's gradient is not summed over dp (communication;
  facebookresearch/fairseq issue 4220 asks which gradients are reduced).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from pytest_trainsafe import divides, requires

WIDTH, EXPERTS, TOKENS, BALANCE = 4, 4, 6, 0.1

LAYOUTS: dict[str, Any] = {
    "parameters": {"experts.*": {"expert_parallel": True}},
    "modules": {
        "*": {"output": {"dp_dim": 0}},
        "experts.*": {"output": {"local": ["dp", "ep"]}},
    },
}


class Swap(torch.autograd.Function):
    """Sends rows to ranks, by their numbers."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, sent: list[int], got: list[int], group: Any) -> Tensor:
        ctx.told = sent, got, group
        return _swap(x, sent, got, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        sent, got, group = ctx.told
        return _swap(grad, got, sent, group), None, None, None


def _swap(x: Tensor, sent: list[int], got: list[int], group: Any) -> Tensor:
    if dist.get_world_size(group) == 1:
        return x.clone()
    y = x.new_empty(sum(got), x.shape[1])
    dist.all_to_all_single(y, x.contiguous(), got, sent, group=group)
    return y


class SumAll(torch.autograd.Function):
    """The sum over ranks, whose gradient each rank has whole."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        y = x.clone()
        dist.all_reduce(y, group=group)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


class Expert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.up(x)))


class Moe(nn.Module):
    """Experts by their global numbers, of which this rank holds a run."""

    def __init__(self, group: Any, bug: str) -> None:
        super().__init__()
        self.group, self.bug = group, bug
        ranks, rank = dist.get_world_size(group), dist.get_rank(group)
        self.ranks, self.held = ranks, EXPERTS // ranks
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        mine = range(rank * self.held, (rank + 1) * self.held)
        self.experts = nn.ModuleDict({str(each): Expert() for each in mine})
        self.balance = torch.zeros(())

    def forward(self, x: Tensor) -> Tensor:
        probabilities = self.router(x).softmax(-1)
        gate, chosen = probabilities.max(-1)
        self.balance = self._balance(probabilities, chosen)
        if self.bug == "expert_offset":
            order = (chosen % self.ranks * EXPERTS + chosen).argsort(stable=True)
            rank_of = chosen % self.ranks
        else:
            order, rank_of = chosen.argsort(stable=True), chosen // self.held
        sent = torch.bincount(rank_of, minlength=self.ranks)
        got = torch.empty_like(sent)
        if self.ranks > 1:
            dist.all_to_all_single(got, sent, group=self.group)
        else:
            got = sent
        counts = sent.tolist(), got.tolist()
        names = self.names_of(chosen[order], *counts)
        y = self.computed(Swap.apply(x[order], *counts, self.group), names)
        back = Swap.apply(y, counts[1], counts[0], self.group)
        if self.bug == "gate_after":
            return back[order.argsort()] * gate[order].unsqueeze(-1)
        if self.bug == "combine_order":
            return back[order] * gate.unsqueeze(-1)
        return back[order.argsort()] * gate.unsqueeze(-1)

    def names_of(self, chosen: Tensor, sent: list[int], got: list[int]) -> Tensor:
        """The experts of the rows that arrive."""
        numbers = chosen.unsqueeze(-1)
        return _swap(numbers, sent, got, self.group).squeeze(-1)

    def computed(self, x: Tensor, names: Tensor) -> Tensor:
        y = torch.zeros_like(x)
        for position, (name, expert) in enumerate(self.experts.items()):
            wanted = names == int(name)
            if self.bug == "expert_offset":
                wanted = names // self.ranks == position
            rows = wanted.nonzero().squeeze(-1)
            y = y.index_add(0, rows, expert(x[rows]))
        return y

    def _balance(self, probabilities: Tensor, chosen: Tensor) -> Tensor:
        """Experts times the sum of fractions of tokens times mean probabilities (Switch)."""
        counts = F.one_hot(chosen, EXPERTS).sum(0).to(probabilities.dtype)
        sums = probabilities.sum(0)
        total = probabilities.shape[0]
        if self.bug != "aux_local":
            dist.all_reduce(counts, group=self.group)
            sums = SumAll.apply(sums, self.group)
            total *= self.ranks
        return EXPERTS * (counts * sums).sum() / total**2


class Model(nn.Module):
    def __init__(self, group: Any, bug: str) -> None:
        super().__init__()
        self.enter = nn.Linear(WIDTH, WIDTH)
        self.moe = Moe(group, bug)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x).tanh()
        return x + self.moe(x)


@requires(divides("tokens", "dp"))
def train(ctx: Any, tokens: int = 2 * TOKENS, bug: str = "") -> None:
    group = ctx.group("dp")
    model = Model(ctx.group("ep"), bug).to(ctx.device, ctx.dtype)
    ctx.initialize(model, annotations=LAYOUTS)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    ctx.watch(model, optimizer, annotations=LAYOUTS)
    ranks, rank = ctx.point.size("dp"), ctx.coordinates["dp"]
    mine = slice(rank * tokens // ranks, (rank + 1) * tokens // ranks)
    for step in range(2):
        with ctx.step():
            for index in ctx.microbatches(2, order="split"):
                with ctx.microbatch(index):
                    generator = torch.Generator().manual_seed(60 * step + index)
                    data = torch.randn(tokens, 2 * WIDTH, generator=generator, dtype=torch.float64)
                    data = ctx.enter(data).to(ctx.device, ctx.dtype)[mine]
                    x, y = data.split(WIDTH, 1)
                    # The mean over this rank's tokens; the sum over dp is divided below.
                    loss = (model(x) - y).square().mean() / 2
                    balance = BALANCE * model.moe.balance / 2
                    if bug == "aux_scale":
                        balance = balance * ranks
                    ctx.loss(loss.detach() + balance.detach())
                    (loss / ranks + (balance / ranks if bug == "aux_local" else balance)).backward()
            for name, parameter in model.named_parameters():
                if ".experts." in name:
                    if bug == "expert_scale":
                        parameter.grad *= ranks
                elif not (bug == "router_no_sum" and "router" in name):
                    dist.all_reduce(parameter.grad, group=group)
            optimizer.step()
            optimizer.zero_grad()
