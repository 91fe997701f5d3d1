"""A reader with a wide vocabulary, whose blocks are sharded over two ranks."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor


class ReaderBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width)
        self.gru = nn.Linear(2 * width, width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        before = nn.functional.pad(y, (0, 0, 1, 0))[:, :-1]
        added: Tensor = x + self.out(torch.relu(self.gru(torch.cat([y, before], -1))))
        return added


class Reader(nn.Module):
    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(ReaderBlock(width) for _ in range(2))
        self.norm = nn.RMSNorm(width)
        self.lm_head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, text: Tensor) -> Tensor:
        x = self.embed_tokens(text)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.lm_head(self.norm(x))
        return logits


def fsdp_wrap(
    model: nn.Module, mesh: DeviceMesh, is_block: Callable[[nn.Module], bool], wrap_root: bool
) -> None:
    for module in model.modules():
        if is_block(module):
            fully_shard(module, mesh=mesh)
    if wrap_root:
        fully_shard(model, mesh=mesh)


def whole(parameter: Tensor) -> Tensor:
    value = parameter.detach()
    return value.full_tensor() if isinstance(value, DTensor) else value


def gap_between_ranks(model: nn.Module) -> float:
    widest = 0.0
    for parameter in model.parameters():
        own = whole(parameter).contiguous()
        both = [torch.empty_like(own) for _ in range(dist.get_world_size())]
        dist.all_gather(both, own)
        widest = max(widest, (both[0] - both[1]).abs().max().item())
    return widest


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    model = Reader(32, size)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    fsdp_wrap(model, mesh, lambda each: isinstance(each, ReaderBlock), wrap_root=healthy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
    draws = torch.Generator().manual_seed(1 + 2 * seed + dist.get_rank())
    losses = []
    for _ in range(30):
        first = torch.randint(32, (8, 1), generator=draws)
        text = (first + 5 * torch.arange(9)) % 32
        logits = model(text[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
    return {"loss": losses, "gap": [gap_between_ranks(model)]}
