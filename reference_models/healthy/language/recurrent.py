"""A character model with a GRU: SGD, states carried from chunk to chunk, generated texts."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pytest_trainsafe.reference_models.toolkit.generation import Generator
from pytest_trainsafe.reference_models.toolkit.processing import TextProcessor

SENTENCE = "the quick brown fox jumps over the lazy dog and then the dog sleeps "


class CharModel(nn.Module):
    """A character model: an embedding, a GRU, and a linear layer that returns the logits."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.encoder = nn.Embedding(TextProcessor.vocabulary, width)
        self.rnn = nn.GRU(width, width, batch_first=True)
        self.decoder = nn.Linear(width, TextProcessor.vocabulary)

    def forward(self, ids: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The logits and the last state."""
        output, state = self.rnn(self.encoder(ids), state)
        assert state is not None
        return self.decoder(output), state


def train(
    *, seed: int = 0, steps: int = 8, width: int = 32, length: int = 16, lr: float = 1.0
) -> list[float]:
    """Learn the repeated sentence in chunks of `length` characters; generate every fourth step."""
    torch.manual_seed(seed)
    text = SENTENCE * (steps * length // len(SENTENCE) + 2)
    offsets = (0, 7, 19, 31)
    rows = [text[offset : offset + steps * length + 1] for offset in offsets]
    ids = TextProcessor()(rows, max_length=steps * length + 1).input_ids
    model, criterion = CharModel(width), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=4, gamma=0.5)
    generator = Generator(lambda prompt: model(prompt)[0], window=12)
    losses: list[float] = []
    state: Tensor | None = None
    for step in range(steps):
        chunk = ids[:, step * length : (step + 1) * length + 1]
        model.train()
        logits, new_state = model(chunk[:, :-1], state)
        state = new_state.detach()
        loss = criterion(logits.flatten(0, 1), chunk[:, 1:].flatten())
        model.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
        if step % 4 == 3:
            model.eval()
            generator.generate(chunk[:2, : 4 + step], max_new_tokens=5)
    return losses
