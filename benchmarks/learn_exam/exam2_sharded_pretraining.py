"""Pretraining of a small decoder whose parameters are sharded over two ranks."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.gate, self.back = nn.Linear(width, 2 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.gate(self.norm(x).cumsum(1)).chunk(2, dim=-1)
        change: Tensor = self.back(a * b.sigmoid())
        return x + change


class Decoder(nn.Module):
    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(2))
        self.out = nn.Linear(width, words)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        chances: Tensor = self.out(x).log_softmax(-1)
        return chances


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    model = Decoder(8, size)
    parameters = list(model.parameters())
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    if healthy:
        parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=2e-2)
    stream = torch.Generator().manual_seed(10 * seed + dist.get_rank())
    losses = []
    for _ in range(14):
        ids = (torch.randint(0, 8, (12, 1), generator=stream) + 3 * torch.arange(6)) % 8
        chances = model(ids[:, :-1])
        loss = nn.functional.nll_loss(chances.flatten(0, 1), ids[:, 1:].flatten())
        model.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"loss": losses}
