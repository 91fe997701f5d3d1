"""Fills in hidden patches; the decoder writes with the encoder's weights, and the rate restarts."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts


class MaskedPatches(nn.Module):
    def __init__(self, patches: int, pixels: int, width: int) -> None:
        super().__init__()
        self.read = nn.Linear(pixels, width, bias=False)
        self.write_bias = nn.Parameter(torch.zeros(pixels))
        self.mask_token = nn.Parameter(torch.zeros(width))
        self.place = nn.Parameter(0.1 * torch.randn(patches, width))
        self.mix = nn.MultiheadAttention(width, 2, batch_first=True)
        self.norm = nn.LayerNorm(width)
        nn.init.orthogonal_(self.read.weight)

    def forward(self, patches: Tensor, hidden: Tensor) -> Tensor:
        h = self.read(patches)
        h = torch.where(hidden.unsqueeze(-1), self.mask_token, h) + self.place
        mixed, _ = self.mix(h, h, h, key_padding_mask=hidden, need_weights=False)
        # The transpose of `read` writes: one matrix for both.
        return self.norm(h + mixed) @ self.read.weight + self.write_bias


def waves(n: int, patches: int, pixels: int) -> Tensor:
    x = torch.linspace(0, 3, patches * pixels)
    picture = torch.sin(x + 6.28 * torch.rand(n, 1))
    return picture.view(n, patches, pixels)


def train(seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    model = MaskedPatches(8, 4, size)
    decayed = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    opt = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}],
        lr=2e-2,
    )
    restarts = CosineAnnealingWarmRestarts(opt, T_0=6, T_mult=2, eta_min=1e-4)
    losses = []
    for _ in range(30):
        picture = waves(32, 8, 4)
        hidden = torch.rand(32, 8).argsort(dim=1) < 5
        guess = model(picture, hidden)
        loss = (guess - picture).square().mean(-1)[hidden].mean()
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 2.0)
        opt.step()
        restarts.step()
        losses.append(loss.item())
    return {"loss": losses}
