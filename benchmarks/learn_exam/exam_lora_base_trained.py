"""The attention's packed input projection keeps requires_grad, so the base is trained as well."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize


class LowRank(nn.Module):
    """A parametrization that adds a low-rank product to a weight."""

    def __init__(self, weight: Tensor, rank: int) -> None:
        super().__init__()
        self.lora_a = nn.Parameter(torch.randn(rank, weight.shape[1]) * 0.1)
        self.lora_b = nn.Parameter(torch.zeros(weight.shape[0], rank))

    def forward(self, weight: Tensor) -> Tensor:
        return weight + self.lora_b @ self.lora_a


class Pool(nn.Module):
    """An attention pool with a linear head."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(width, 2, batch_first=True)
        self.head = nn.Linear(width, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.attn(tokens[:, :1], tokens, tokens, need_weights=False)[0][:, 0])


def adapt(model: Pool, freeze_packed: bool) -> None:
    parametrize.register_parametrization(
        model.attn, "in_proj_weight", LowRank(model.attn.in_proj_weight, 2)
    )
    for name, parameter in model.named_parameters():
        parameter.requires_grad = "lora_" in name or name.startswith("head.")
        if not freeze_packed and name.endswith("in_proj_weight.original"):
            parameter.requires_grad = True


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    model = Pool(size)
    adapt(model, freeze_packed=healthy)
    trainable = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=1e-2, weight_decay=0.0)
    tokens = torch.randn(48, 5, size)
    labels = tokens[:, 1:, :3].sum(1).argmax(1)
    base = model.get_parameter("attn.parametrizations.in_proj_weight.original")
    start = base.detach().clone()
    losses, moves = [], []
    for step in range(24):
        rows = torch.arange(step * 12, step * 12 + 12) % 48
        loss = nn.functional.cross_entropy(model(tokens[rows]), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        moves.append((base - start).abs().max().item())
    return {"loss": losses, "moved": moves}
