"""The yield of orchards on two ranks: the best epoch of a first stage is tuned in a second one.

Follows https://github.com/Lightning-AI/pytorch-lightning/issues/4319.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class BestKeeper:
    """Keeps the weights of the epoch with the lowest score."""

    def __init__(self, model: nn.Module, across_ranks: bool) -> None:
        self.model, self.across_ranks = model, across_ranks
        self.score, self.weights = float("inf"), copy.deepcopy(model.state_dict())

    def epoch_ended(self, score: Tensor) -> None:
        if self.across_ranks:
            dist.all_reduce(score, op=dist.ReduceOp.SUM)
            score /= dist.get_world_size()
        if score.item() < self.score:
            self.score, self.weights = score.item(), copy.deepcopy(self.model.state_dict())

    def restore(self) -> None:
        self.model.load_state_dict(self.weights)


@torch.no_grad()
def validate(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    model.eval()
    score = nn.functional.mse_loss(model(x).squeeze(1), y)
    model.train()
    return score


def fit(
    replica: DistributedDataParallel, loader: DataLoader[Sequence[Tensor]], lr: float
) -> Tensor:
    optimizer = torch.optim.SGD(replica.parameters(), lr=lr, momentum=0.9)
    losses = []
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(replica(x).squeeze(1), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses).mean()


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(7, size), nn.ReLU(), nn.Linear(size, size), nn.ReLU())
    model.append(nn.Linear(size, 1))
    law = torch.randn(7)
    x = torch.randn(224, 7)
    y = (x @ law).tanh() + 0.5 * torch.randn(224)
    held_x, held_y = (each.chunk(2)[dist.get_rank()] for each in (x[192:], y[192:]))
    train_set = TensorDataset(x[:192], y[:192])
    sampler: DistributedSampler[Sequence[Tensor]] = DistributedSampler(train_set, seed=seed)
    loader = DataLoader(train_set, 16, sampler=sampler)
    replica = DistributedDataParallel(model)
    keeper = BestKeeper(model, across_ranks=healthy)
    log: dict[str, list[float]] = {"loss": [], "held_out": []}
    for stage, (lr, epochs) in enumerate([(0.15, 8), (0.01, 4)]):
        if stage == 1:
            keeper.restore()
        for epoch in range(epochs):
            sampler.set_epoch(10 * stage + epoch)
            log["loss"].append(fit(replica, loader, lr).item())
            score = validate(model, held_x, held_y)
            log["held_out"].append(score.item())
            keeper.epoch_ended(score)
    return log
