"""Ten programs that overlap communication with computation, each correct or with a planted bug.

`bench_missing_waits.py` and a test judge them.  In the source of each, `# issued` marks the line
that issues the collective, and `# used` the line that uses its buffer too early if `planted` is
set.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

WIDTH, BATCH, STEPS = 8, 4, 2

#: The names of newer releases of torch, which warn if the older ones are used.
GATHER: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
SCATTER: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class Overlapping:
    """A data-parallel training of two layers; a subclass overlaps some of its communication."""

    def __init__(self, ctx: Any, planted: bool) -> None:
        if not dist.is_initialized():
            dist.init_process_group()
        self.planted, self.world, self.rank = planted, dist.get_world_size(), dist.get_rank()
        self.model: Any = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
        ctx.initialize(self.model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        ctx.watch(self.model, self.optimizer, level="step")
        self.prepare()

    def prepare(self) -> None:
        """Called once, before the first step."""

    def inputs(self, step: int) -> torch.Tensor:
        """This rank's examples."""
        drawn = torch.Generator().manual_seed(100 * step + self.rank)
        return torch.randn(BATCH, WIDTH, generator=drawn)

    def forward(self, step: int) -> torch.Tensor:
        """The loss."""
        loss: torch.Tensor = self.model(self.inputs(step)).pow(2).mean()
        return loss

    def reduce(self) -> None:
        """Averages the gradients over the ranks."""
        for each in self.model.parameters():
            dist.all_reduce(each.grad)
            assert each.grad is not None
            each.grad /= self.world

    def update(self) -> None:
        """The step of the optimizer."""
        self.optimizer.step()

    def train(self, ctx: Any) -> None:
        """All steps."""
        for step in range(STEPS):
            with ctx.step():
                self.optimizer.zero_grad()
                loss = self.forward(step)
                loss.backward()
                ctx.loss(loss.detach())
                self.reduce()
                self.update()


class Buckets(Overlapping):
    """Each layer's gradients are reduced in a bucket while the backward goes on."""

    def prepare(self) -> None:
        self.buckets: list[tuple[nn.Module, torch.Tensor, Any]] = []
        for layer in (self.model[0], self.model[2]):
            left = [0]

            def ready(_: Any, layer: nn.Module = layer, left: list[int] = left) -> None:
                left[0] += 1
                if left[0] % 2 == 0:
                    flat = torch.cat(
                        [p.grad.view(-1) for p in layer.parameters() if p.grad is not None]
                    )
                    work = dist.all_reduce(flat, async_op=True)  # issued
                    self.buckets.append((layer, flat, work))

            for each in layer.parameters():
                each.register_post_accumulate_grad_hook(ready)

    def reduce(self) -> None:
        for number, (layer, flat, work) in enumerate(self.buckets):
            if not (self.planted and number == 1):
                work.wait()
            at = 0
            for each in layer.parameters():
                assert each.grad is not None
                size = each.numel()
                each.grad.copy_(flat[at : at + size].view_as(each) / self.world)  # used
                at += size
        self.buckets.clear()


class Gathered(Overlapping):
    """The weight of the second layer is gathered from its shards while the first one computes."""

    def forward(self, step: int) -> torch.Tensor:
        weight = self.model[2].weight
        shard = weight.detach().chunk(self.world)[self.rank].contiguous()
        whole = torch.empty_like(weight)
        work = GATHER(whole, shard, async_op=True)  # issued
        hidden = self.model[1](self.model[0](self.inputs(step)))
        if not self.planted:
            work.wait()
        weight.data.copy_(whole)  # used
        loss: torch.Tensor = self.model[2](hidden).pow(2).mean()
        return loss


class Ring(Overlapping):
    """Each rank sends its hidden values to the next one, in a batch of a send and a receive."""

    def forward(self, step: int) -> torch.Tensor:
        hidden = self.model[1](self.model[0](self.inputs(step)))
        sent, received = hidden.detach().clone(), torch.zeros_like(hidden)
        ahead, behind = (self.rank + 1) % self.world, (self.rank - 1) % self.world
        works = dist.batch_isend_irecv(  # issued
            [dist.P2POp(dist.isend, sent, ahead), dist.P2POp(dist.irecv, received, behind)]
        )
        for work in works[:1] if self.planted else works:
            work.wait()
        mixed = hidden + 0.1 * received  # used
        loss: torch.Tensor = self.model[2](mixed).pow(2).mean()
        return loss


class Scattered(Overlapping):
    """Each rank reduces its shard of the gradient and gathers the others."""

    def reduce(self) -> None:
        works = []
        for each in self.model.parameters():
            assert each.grad is not None
            shard = each.grad.new_empty(each.numel() // self.world)
            flat = each.grad.view(-1).clone()
            work = SCATTER(shard, flat, async_op=True)  # issued
            works.append((each, shard, flat, work))
        for number, (each, shard, _, work) in enumerate(works):
            if not (self.planted and number == 2):
                work.wait()
            shard = shard / self.world  # used
            assert each.grad is not None
            GATHER(each.grad.view(-1), shard)


class Exchanged(Overlapping):
    """Rows go to other ranks and come back, as the tokens of experts do."""

    def forward(self, step: int) -> torch.Tensor:
        hidden = self.model[1](self.model[0](self.inputs(step)))
        received = torch.empty_like(hidden)
        work = dist.all_to_all_single(received, hidden.detach(), async_op=True)  # issued
        shared = hidden * 0.5
        if not self.planted:
            work.wait()
        mixed = shared + received  # used
        loss: torch.Tensor = self.model[2](mixed).pow(2).mean()
        return loss


class Broadcast(Overlapping):
    """The first rank broadcasts a factor of the loss."""

    def forward(self, step: int) -> torch.Tensor:
        factor = torch.full((1,), 1.0 + step + self.rank)
        work = dist.broadcast(factor, src=0, async_op=True)  # issued
        output = self.model(self.inputs(step))
        if not self.planted:
            work.wait()
        loss: torch.Tensor = (output * factor).pow(2).mean()  # used
        return loss


class Swapped(Overlapping):
    """The gradients of two layers are reduced at once, and each is used after its own wait."""

    def reduce(self) -> None:
        first, second = (
            torch.cat([p.grad.view(-1) for p in self.model[n].parameters()]) for n in (0, 2)
        )
        one = dist.all_reduce(first, async_op=True)  # issued
        two = dist.all_reduce(second, async_op=True)
        if self.planted:
            one, two = two, one
        one.wait()
        self.spread(self.model[0], first)  # used
        two.wait()
        self.spread(self.model[2], second)

    def spread(self, layer: nn.Module, flat: torch.Tensor) -> None:
        """Gives a layer its averaged gradients."""
        sizes = [each.numel() for each in layer.parameters()]
        for each, part in zip(layer.parameters(), flat.split(sizes), strict=True):
            assert each.grad is not None
            each.grad.copy_((part / self.world).view_as(each))  # used


class WrongHandle(Overlapping):
    """Each gradient has a handle of its own."""

    def reduce(self) -> None:
        works = []
        for each in self.model.parameters():
            works.append(dist.all_reduce(each.grad, async_op=True))  # issued
        for number, each in enumerate(self.model.parameters()):
            works[number - 1 if self.planted and number == 3 else number].wait()
            assert each.grad is not None
            each.grad /= self.world  # used


class AfterStep(Overlapping):
    """The gradients are summed in place."""

    def reduce(self) -> None:
        self.works = [
            dist.all_reduce(each.grad, async_op=True)  # issued
            for each in self.model.parameters()
        ]
        if not self.planted:
            self.wait()

    def wait(self) -> None:
        """Waits for all of them."""
        for each in self.works:
            each.wait()

    def update(self) -> None:
        self.optimizer.step()  # used
        self.wait()


class Reused(Overlapping):
    """Hidden values are sent from one buffer, which the next exchange uses again."""

    def prepare(self) -> None:
        self.buffer = torch.empty(BATCH, WIDTH)

    def forward(self, step: int) -> torch.Tensor:
        hidden = self.model[1](self.model[0](self.inputs(step)))
        everyone = torch.empty(self.world * BATCH, WIDTH)
        self.buffer.copy_(hidden.detach())
        work = GATHER(everyone, self.buffer, async_op=True)  # issued
        if not self.planted:
            work.wait()
        self.buffer.zero_()  # used
        if self.planted:
            work.wait()
        mixed = hidden + everyone.view(self.world, BATCH, WIDTH).sum(0)
        loss: torch.Tensor = self.model[2](mixed).pow(2).mean()
        return loss


CASES: dict[str, type[Overlapping]] = {
    "buckets of gradients": Buckets,
    "gathered parameters": Gathered,
    "batched send and receive": Ring,
    "reduce-scatter": Scattered,
    "all-to-all": Exchanged,
    "broadcast": Broadcast,
    "two handles swapped": Swapped,
    "wait for another handle": WrongHandle,
    "wait after the optimizer": AfterStep,
    "input overwritten": Reused,
}


def train(ctx: Any, case: str, planted: bool = False) -> None:
    """Trains as a case does."""
    CASES[case](ctx, planted).train(ctx)


def lines(case: str, mark: str) -> set[int]:
    """The numbers of the lines of a case that have a mark."""
    found, first = inspect.getsourcelines(CASES[case])
    return {first + n for n, line in enumerate(found) if line.rstrip().endswith(f"# {mark}")}


#: What the finding on each planted bug must be.
EXPECTED: dict[str, str] = {
    case: "schedule:reused_in_flight" if case == "input overwritten" else "schedule:missing_wait"
    for case in CASES
}
