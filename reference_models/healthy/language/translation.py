"""torch's Transformer reverses sequences: Adam with warm-up and decay, checkpoints, decoding."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn

from pytest_trainsafe.reference_models.toolkit.checkpoint import Checkpointer


class Translator(nn.Module):
    """An encoder and a decoder with embeddings of their own."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(vocabulary, width), nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(0.1 * torch.randn(10, width))
        self.transformer = nn.Transformer(width, 2, 1, 1, 2 * width, 0.1, batch_first=True)
        self.generator = nn.Linear(width, vocabulary)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """The logits of every next target token."""
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        output = self.transformer(
            self.source(source) + self.positions[: source.shape[1]],
            self.target(target) + self.positions[: target.shape[1]],
            tgt_mask=mask,
            tgt_is_causal=True,
        )
        logits: Tensor = self.generator(output)
        return logits


def train(
    *, seed: int = 0, steps: int = 6, width: int = 24, batch: int = 16, smoothing: float = 0.1
) -> list[float]:
    """Train with teacher forcing, save, restore, and decode one sequence greedily."""
    torch.manual_seed(seed)
    model = Translator(12, width)
    criterion = nn.CrossEntropyLoss(label_smoothing=smoothing)
    optimizer = torch.optim.Adam(model.parameters(), lr=1.0, betas=(0.9, 0.98), eps=1e-9)
    noam = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda n: width**-0.5 * min((n + 1) ** -0.5, (n + 1) * 8**-1.5) / 8
    )
    losses = []
    model.train()
    for _ in range(steps):
        source = torch.randint(2, 12, (batch, 7))
        target = torch.cat([torch.ones(batch, 1, dtype=torch.long), source.flip(1)], dim=1)
        logits = model(source, target[:, :-1])
        loss = criterion(logits.flatten(0, 1), target[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        noam.step()
        losses.append(loss.item())
    with tempfile.TemporaryDirectory() as folder:
        checkpointer = Checkpointer(Path(folder))
        checkpointer.save(model, "translator")
        restored = Translator(12, width)
        checkpointer.load(restored, "translator")
    restored.eval()
    with torch.no_grad():
        source, output = torch.randint(2, 12, (1, 7)), torch.ones(1, 1, dtype=torch.long)
        for _ in range(3):
            following = restored(source, output)[:, -1].argmax(dim=-1, keepdim=True)
            output = torch.cat([output, following], dim=1)
    return losses
