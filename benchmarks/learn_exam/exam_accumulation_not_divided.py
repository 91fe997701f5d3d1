"""Losses of micro-batches are summed without division, which makes clipping tighter."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class GPT(nn.Module):
    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(words, width), nn.Embedding(8, width)
        self.attn = nn.MultiheadAttention(width, 4, batch_first=True)
        self.ln_1, self.ln_f = nn.LayerNorm(width), nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, words, bias=False)

    def forward(self, idx: Tensor, targets: Tensor) -> Tensor:
        length = idx.shape[1]
        x = self.wte(idx) + self.wpe(torch.arange(length))
        mask = torch.ones(length, length).triu(1).bool()
        h = self.ln_1(x)
        x = x + self.attn(h, h, h, attn_mask=mask, need_weights=False)[0]
        logits = self.lm_head(self.ln_f(x))
        return nn.functional.cross_entropy(logits.view(-1, logits.shape[-1]), targets.reshape(-1))


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    gradient_accumulation_steps, grad_clip = 4, 1.0
    model = GPT(16, size)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    losses = []
    for _ in range(14):
        for _ in range(gradient_accumulation_steps):
            start = torch.randint(0, 16, (6, 1))
            text = (start + 3 * torch.arange(7)) % 16
            loss = model(text[:, :-1], text[:, 1:])
            losses.append(loss.item())
            if healthy:
                loss = loss / gradient_accumulation_steps
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return {"loss": losses}
