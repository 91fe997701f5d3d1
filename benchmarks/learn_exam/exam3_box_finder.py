"""Finds the box in a picture, with groups of parameters that warm up in different ways."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass
class Hyperparameters:
    lr0: float = 0.05
    lrf: float = 0.1
    momentum: float = 0.8
    weight_decay: float = 5e-4
    warmup_steps: int = 12
    warmup_bias_lr: float = 0.1
    bias_group: int = 0
    steps: int = 36
    batch: int = 16


class Finder(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(1, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.SiLU(),
            nn.Conv2d(channels, channels, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.SiLU(),
        )
        self.box = nn.Linear(channels * 25, 4)

    def forward(self, pictures: Tensor) -> Tensor:
        found: Tensor = self.box(self.backbone(pictures).flatten(1))
        return found


def scenes(batch: int) -> tuple[Tensor, Tensor]:
    pictures = 0.2 * torch.randn(batch, 1, 10, 10)
    corner = torch.randint(0, 5, (batch, 2))
    extent = torch.randint(2, 6, (batch, 2))
    for picture, (top, left), (height, width) in zip(
        pictures, corner.tolist(), extent.tolist(), strict=True
    ):
        picture[0, top : top + height, left : left + width] += 1
    return pictures, torch.cat([corner, extent], 1) / 10


def smart_optimizer(model: nn.Module, hyp: Hyperparameters) -> torch.optim.SGD:
    biases: list[nn.Parameter] = []
    weights: list[nn.Parameter] = []
    norms: list[nn.Parameter] = []
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if name == "bias":
                biases.append(parameter)
            elif isinstance(module, nn.BatchNorm2d):
                norms.append(parameter)
            else:
                weights.append(parameter)
    optimizer = torch.optim.SGD(biases, lr=hyp.lr0, momentum=hyp.momentum, nesterov=True)
    optimizer.add_param_group({"params": weights, "weight_decay": hyp.weight_decay})
    optimizer.add_param_group({"params": norms})
    return optimizer


def warm_up(optimizer: torch.optim.Optimizer, step: int, hyp: Hyperparameters) -> None:
    done = step / hyp.warmup_steps
    for number, group in enumerate(optimizer.param_groups):
        begin = hyp.warmup_bias_lr if number == hyp.bias_group else 0.0
        group["lr"] = begin + done * (hyp.lr0 - begin)


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    hyp = Hyperparameters(bias_group=0 if healthy else 2)
    model = Finder(size)
    optimizer = smart_optimizer(model, hyp)
    losses = []
    for step in range(hyp.steps):
        if step < hyp.warmup_steps:
            warm_up(optimizer, step, hyp)
        else:
            left = (hyp.steps - step) / (hyp.steps - hyp.warmup_steps)
            for group in optimizer.param_groups:
                group["lr"] = hyp.lr0 * (hyp.lrf + (1 - hyp.lrf) * left)
        pictures, boxes = scenes(hyp.batch)
        loss = nn.functional.mse_loss(model(pictures), boxes)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return {"loss": losses}
