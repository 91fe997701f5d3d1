"""A checkpoint is loaded with assign=True, which gives embedding and head tensors of their own."""

from __future__ import annotations

import io

import torch
from torch import Tensor, nn


class TiedLM(nn.Module):
    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.block = nn.TransformerEncoderLayer(
            width, 2, 2 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        ahead = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        return self.head(self.block(self.embed(tokens) / 4, src_mask=ahead, is_causal=True))


def saved(model: nn.Module) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    return file


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    pretrained = TiedLM(24, size)
    model = TiedLM(24, size)
    state = {name: value.clone() for name, value in torch.load(saved(pretrained)).items()}
    model.load_state_dict(state, assign=not healthy)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    text = (torch.randint(0, 24, (40, 1)) + torch.arange(7)) % 24
    losses, gaps = [], []
    for _ in range(4):
        for rows in text.split(10):
            scores = model(rows[:, :-1])
            loss = nn.functional.cross_entropy(scores.transpose(1, 2), rows[:, 1:])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            gaps.append((model.head.weight - model.embed.weight).abs().max().item())
    return {"loss": losses, "gap": gaps}
