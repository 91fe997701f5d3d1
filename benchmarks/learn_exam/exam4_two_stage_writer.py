"""Writes syllables with a model cut into two stages, whose ends use one table of syllables."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

SYLLABLES = 12
MICRO = 3


def chant(rows: int, length: int, g: torch.Generator) -> Tensor:
    """Each syllable is followed by the one three further on, or now and then by another."""
    now = torch.randint(SYLLABLES, (rows,), generator=g)
    sung = [now]
    for _ in range(length - 1):
        jump = (torch.rand(rows, generator=g) < 0.15).long()
        now = (now + 3 + jump * torch.randint(SYLLABLES, (rows,), generator=g)) % SYLLABLES
        sung.append(now)
    return torch.stack(sung, 1)


class FirstStage(nn.Module):
    def __init__(self, table: Tensor, dim: int) -> None:
        super().__init__()
        self.table = nn.Parameter(table)
        self.body = nn.Linear(dim, dim)

    def forward(self, ids: Tensor) -> Tensor:
        h = F.embedding(ids, self.table)
        return h + torch.tanh(self.body(h))


class LastStage(nn.Module):
    def __init__(self, table: Tensor, dim: int) -> None:
        super().__init__()
        self.table = nn.Parameter(table)
        self.body = nn.Linear(dim, dim)

    def forward(self, h: Tensor) -> Tensor:
        h = h + torch.tanh(self.body(h))
        return h @ self.table.T


class Pipeline:
    """Runs the forward passes of all micro-batches and then their backward passes."""

    def __init__(self, dim: int, lr: float, sync_table: bool) -> None:
        self.rank = dist.get_rank()
        table = torch.randn(SYLLABLES, dim) * 0.5
        first, last = FirstStage(table.clone(), dim), LastStage(table.clone(), dim)
        self.stage: FirstStage | LastStage = first if self.rank == 0 else last
        self.optimizer = torch.optim.Adam(self.stage.parameters(), lr=lr)
        self.dim, self.sync_table = dim, sync_table

    def step(self, ids: Tensor) -> float:
        self.optimizer.zero_grad(set_to_none=False)
        micro = ids.chunk(MICRO)
        loss = self._first(micro) if self.rank == 0 else self._last(micro)
        if self.sync_table:
            assert self.stage.table.grad is not None
            dist.all_reduce(self.stage.table.grad)
        self.optimizer.step()
        dist.broadcast(loss, src=1)
        return loss.item()

    def _first(self, micro: tuple[Tensor, ...]) -> Tensor:
        outputs = [self.stage(part[:, :-1]) for part in micro]
        for out in outputs:
            dist.send(out.detach(), dst=1)
        for out in outputs:
            grad = torch.empty_like(out)
            dist.recv(grad, src=1)
            out.backward(grad)
        return torch.zeros(())

    def _last(self, micro: tuple[Tensor, ...]) -> Tensor:
        total = torch.zeros(())
        inputs, losses = [], []
        for part in micro:
            h = torch.empty(len(part), part.shape[1] - 1, self.dim)
            dist.recv(h, src=0)
            inputs.append(h.requires_grad_())
            logits = self.stage(h).flatten(0, 1)
            losses.append(F.cross_entropy(logits, part[:, 1:].flatten()) / len(micro))
        for h, loss in zip(inputs, losses, strict=True):
            loss.backward()
            assert h.grad is not None
            dist.send(h.grad, dst=0)
            total = total + loss.detach()
        return total

    @torch.no_grad()
    def exported(self, ids: Tensor) -> float:
        """The loss of the model as it is exported: with one table, that of the first stage."""
        h, table = torch.empty(len(ids), ids.shape[1] - 1, self.dim), self.stage.table.clone()
        if self.rank == 0:
            h = self.stage(ids[:, :-1])
        dist.broadcast(h, src=0)
        dist.broadcast(table, src=0)
        loss = torch.zeros(())
        if self.rank == 1:
            logits = (h + torch.tanh(self.stage.body(h))) @ table.T
            loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        dist.broadcast(loss, src=1)
        return loss.item()

    def gap(self) -> float:
        other = self.stage.table.detach().clone()
        dist.broadcast(other, src=0)
        apart = (other - self.stage.table.detach()).abs().max()
        dist.all_reduce(apart, dist.ReduceOp.MAX)
        return apart.item()


def train(healthy: bool = True, seed: int = 0, size: int = 12) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    pipeline = Pipeline(size, lr=2e-2, sync_table=healthy)
    g = torch.Generator().manual_seed(seed + 50)
    held_out = chant(40, 7, g)
    losses, gaps, exported = [], [], []
    for _ in range(40):
        losses.append(pipeline.step(chant(18, 7, g)))
        gaps.append(pipeline.gap())
        exported.append(pipeline.exported(held_out))
    return {"loss": losses, "gap": gaps, "exported": exported}
