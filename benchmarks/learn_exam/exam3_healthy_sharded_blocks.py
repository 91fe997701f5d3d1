"""A sharded decoder whose blocks are computed anew, with one bound on the norm of all gradients."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width),
            nn.Linear(width, 2 * width),
            nn.GELU(),
            nn.Dropout(0.1),
            nn.Linear(2 * width, width),
        )

    def forward(self, x: Tensor, later: Tensor) -> Tensor:
        y = self.norm(x)
        mixed, _ = self.attention(y, y, y, attn_mask=later, need_weights=False)
        x = x + mixed
        mapped: Tensor = x + self.mlp(x)
        return mapped


class Decoder(nn.Module):
    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(2))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, text: Tensor) -> Tensor:
        x = self.embedding(text)
        later = torch.ones(text.shape[1], text.shape[1], dtype=torch.bool).triu(1)
        for block in self.blocks:
            x = checkpoint(block, x, later, use_reentrant=False)
        logits: Tensor = self.head(x)
        return logits


def train(seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    model = Decoder(14, size)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=8e-3, weight_decay=0.05)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 5))
    torch.manual_seed(1000 * (seed + 1) + dist.get_rank())
    losses: list[float] = []
    for _ in range(24):
        start, stride = torch.randint(14, (8, 1)), torch.randint(1, 3, (8, 1))
        text = (start + stride * torch.arange(9)) % 14
        logits = model(text[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return {"loss": losses}
