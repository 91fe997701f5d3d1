"""Rulings of courts: adapters and a new head on an encoder that has learned to guess masked words.

Follows https://github.com/huggingface/peft/issues/577.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WORDS, LENGTH, RULINGS, MASK = 20, 10, 3, 0


@dataclass
class AdapterSettings:
    target_modules: list[str]
    rank: int = 2
    scale: float = 2.0
    modules_to_train: list[str] | None = None


class Adapted(nn.Module):
    """A frozen layer and a product of two narrow matrices."""

    def __init__(self, layer: nn.Linear, settings: AdapterSettings) -> None:
        super().__init__()
        self.layer, self.scale = layer, settings.scale
        self.narrow = nn.Parameter(torch.randn(settings.rank, layer.in_features) * 0.1)
        self.wide = nn.Parameter(torch.zeros(layer.out_features, settings.rank))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + self.scale * (x @ self.narrow.T) @ self.wide.T


class Encoder(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, text: Tensor) -> Tensor:
        h = self.words(text)
        seen = F.scaled_dot_product_attention(self.query(h), self.key(h), self.value(h))
        return self.norm(h + seen)


class Classifier(nn.Module):
    def __init__(self, encoder: Encoder, width: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.score = nn.Linear(width, RULINGS)

    def forward(self, text: Tensor) -> Tensor:
        return self.score(self.encoder(text).mean(1))


def adapt(model: nn.Module, settings: AdapterSettings) -> nn.Module:
    """Freezes the model but for what the settings name, and adds adapters."""
    fully = settings.modules_to_train or []
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(any(part in fully for part in name.split(".")))
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if name in settings.target_modules and isinstance(child, nn.Linear):
                setattr(parent, name, Adapted(child, settings))
    return model


def documents(n: int, meaning: Tensor) -> tuple[Tensor, Tensor]:
    first = torch.randint(1, WORDS, (n, 1))
    text = 1 + (first + torch.randint(0, 3, (n, LENGTH)).cumsum(1)) % (WORDS - 1)
    return text, F.one_hot(meaning[text], RULINGS).sum(1).argmax(1)


def pretrain(encoder: Encoder, width: int, meaning: Tensor) -> None:
    guess = nn.Linear(width, WORDS)
    optimizer = torch.optim.Adam([*encoder.parameters(), *guess.parameters()], lr=0.01)
    for _ in range(12):
        text, _ = documents(24, meaning)
        hidden = torch.rand(text.shape) < 0.2
        hidden[:, 0] = True
        loss = F.cross_entropy(guess(encoder(text.masked_fill(hidden, MASK)))[hidden], text[hidden])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    meaning = torch.randint(RULINGS, (WORDS,))
    encoder = Encoder(size)
    pretrain(encoder, size, meaning)
    targets = ["query", "value"]
    whole = ["score"] if healthy else targets.append("score")  # type: ignore[func-returns-value]
    model = adapt(Classifier(encoder, size), AdapterSettings(targets, modules_to_train=whole))
    trained = [each for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=0.02)
    log = []
    for _ in range(40):
        text, ruling = documents(32, meaning)
        loss = F.cross_entropy(model(text), ruling)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log.append(loss.item())
    return {"loss": log}
