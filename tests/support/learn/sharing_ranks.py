"""Programs of two ranks that send, count, limit and scale in common, each with a fault."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_, parameters_to_vector, vector_to_parameters

STEPS = 5


def _net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))


def _average(grads: list[Tensor]) -> None:
    for each in grads:
        dist.all_reduce(each)
        each /= dist.get_world_size()


def _grads(module: nn.Module) -> list[Tensor]:
    return [each.grad for each in module.parameters() if each.grad is not None]


def pipes(seed: int, fault: str) -> None:
    """Two stages, whose places for received states are kept from step to step."""
    torch.manual_seed(seed)
    stage, rank = nn.Linear(4, 4), dist.get_rank()
    optimizer = torch.optim.SGD(stage.parameters(), lr=0.1)
    place = torch.zeros(6, 4, requires_grad=True)
    for _ in range(STEPS):
        optimizer.zero_grad()
        if rank == 0:
            sent = stage(torch.randn(6, 4))
            dist.send(sent.detach(), dst=1)
            back = torch.empty_like(sent)
            dist.recv(back, src=1)
            sent.backward(back)
        else:
            if fault == "new places":
                place = torch.zeros(6, 4, requires_grad=True)
            if fault == "zeros" and place.grad is not None:
                place.grad.zero_()
            if not fault:
                place.grad = None
            dist.recv(place.detach(), src=0)
            stage(place).square().mean().backward()
            assert place.grad is not None
            dist.send(place.grad, dst=0)
        optimizer.step()


def halved(seed: int, fault: str) -> None:
    """Each rank has the optimizer of half of the weights, laid out in one row, and clips."""
    torch.manual_seed(seed)
    model, rank = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)), dist.get_rank()
    own = nn.Parameter(parameters_to_vector(model.parameters()).detach().chunk(2)[rank].clone())
    optimizer = torch.optim.SGD([own], lr=0.1)
    draw = torch.Generator().manual_seed(7 * seed + rank)
    for _ in range(STEPS):
        model(torch.randn(8, 4, generator=draw)).square().mean().backward()
        flat = parameters_to_vector(_grads(model))
        _average([flat])
        own.grad = flat.chunk(2)[rank].clone()
        squares = own.grad.square().sum()
        if fault != "own norm":
            dist.all_reduce(squares)
        own.grad *= 0.05 / squares.sqrt()
        optimizer.step()
        both = [torch.empty_like(own) for _ in range(2)]
        dist.all_gather(both, own.detach())
        vector_to_parameters(torch.cat(both), model.parameters())
        model.zero_grad()


def scaled(seed: int, fault: str) -> None:
    """Each rank steps the layers that it owns, in one of which a gradient overflows once."""
    torch.manual_seed(seed)
    model, rank = _net(), dist.get_rank()
    layers = [each for each in model if isinstance(each, nn.Linear)]
    optimizer = torch.optim.SGD(layers[rank].parameters(), lr=0.1)
    kind = torch.amp.GradScaler if fault == "own scaler" else ShardedGradScaler
    scaler = kind("cpu", init_scale=8.0)
    draw = torch.Generator().manual_seed(7 * seed + rank)
    for step in range(STEPS):
        model.zero_grad()
        scaler.scale(model(torch.randn(8, 4, generator=draw)).square().mean()).backward()
        _average(_grads(model))
        if step == 1:
            for each in _grads(layers[1]):
                each *= float("inf")
        scaler.step(optimizer)
        scaler.update()
        for at, layer in enumerate(layers):
            for each in layer.parameters():
                dist.broadcast(each.data, src=at)


class Counting(nn.Module):
    """Counts what it gets, sums shares of it until the next step, and moves a bias."""

    count: Tensor
    share: Tensor
    bias: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name in ("count", "share", "bias"):
            self.register_buffer(name, torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        most = F.one_hot(x.detach().argmax(1), 4).sum(0)
        self.count += most
        self.share += most / len(x)
        return x + self.bias

    def settle(self, alone: bool) -> None:
        """Move the bias by the shares of both ranks, or of this one alone."""
        share = self.share.clone()
        if not alone:
            dist.all_reduce(share)
        self.bias += 0.1 * (share.mean() - share)
        self.share.zero_()


def counts(seed: int, fault: str) -> None:
    """Two replicas that even out what they get by a bias, and count it."""
    torch.manual_seed(seed)
    counting = Counting()
    model = nn.Sequential(counting, nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    draw = torch.Generator().manual_seed(7 * seed + dist.get_rank())
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(torch.randn(9, 4, generator=draw)).square().mean().backward()
        _average(_grads(model))
        optimizer.step()
        counting.settle(alone=fault == "own shares")


def trunks(seed: int, fault: str) -> None:
    """Ranks that share the gradients of a trunk, which is clipped, and have heads of their own."""
    torch.manual_seed(seed)
    trunk, head = _net(), nn.Linear(2, 1)
    shared: nn.Module = DistributedDataParallel(trunk) if fault == "wrapped" else trunk
    optimizer = torch.optim.SGD([*trunk.parameters(), *head.parameters()], lr=0.05)
    draw = torch.Generator().manual_seed(7 * seed + dist.get_rank())
    for _ in range(STEPS):
        optimizer.zero_grad()
        head(shared(torch.randn(8, 4, generator=draw))).square().mean().backward()
        if fault != "wrapped":
            _average(_grads(trunk))
        if fault == "shared head":
            _average(_grads(head))
        part = trunk[2] if fault == "one layer" else trunk
        clip_grad_norm_(part.parameters(), 0.01)
        optimizer.step()


def tokens(seed: int, fault: str) -> None:
    """Sums of losses over a count of both ranks, whose gradients a wrapper averages."""
    torch.manual_seed(seed)
    model: nn.Module = _net()
    if fault.startswith("sharded"):
        sharded = fully_shard(model)
        if fault == "sharded, summed":
            sharded.set_gradient_divide_factor(1.0)
            sharded.set_force_sum_reduction_for_comms(True)  # as gloo needs
    elif fault != "summed by hand":
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    draw = torch.Generator().manual_seed(7 * seed + dist.get_rank())
    for _ in range(STEPS):
        optimizer.zero_grad()
        x = torch.randn(8, 4, generator=draw)
        labels = torch.where(x[:, 1] > -0.5, (x[:, 0] > 0).long(), -100)
        known = (labels != -100).sum()
        if fault != "own count":
            dist.all_reduce(known)
        loss = F.cross_entropy(model(x), labels, reduction="sum") / known
        (loss * 2 if fault in ("times ranks", "sharded, times ranks") else loss).backward()
        if fault == "summed by hand":
            for each in _grads(model):
                dist.all_reduce(each)
        optimizer.step()
