"""Names of rivers, letter by letter; a weight is updated as soon as its gradient is known."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LETTERS, LENGTH = 15, 8


class Namer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.letters = nn.Embedding(LETTERS, width)
        self.before = nn.Conv1d(width, width, 3)
        self.mix = nn.Sequential(nn.GELU(), nn.Linear(width, width), nn.GELU())
        self.head = nn.Linear(width, LETTERS)

    def forward(self, letters: Tensor) -> Tensor:
        x = F.pad(self.letters(letters).transpose(1, 2), (2, 0))
        scores: Tensor = self.head(self.mix(self.before(x).transpose(1, 2)))
        return scores


class UpdatedInBackward:
    """An optimizer for each parameter, which steps within the backward pass."""

    def __init__(self, net: nn.Module, lr: float) -> None:
        self.optimizers = {
            each: torch.optim.AdamW([each], lr=lr, weight_decay=0.0) for each in net.parameters()
        }
        for each in self.optimizers:
            each.register_post_accumulate_grad_hook(self.update)

    def update(self, parameter: Tensor) -> None:
        optimizer = self.optimizers[parameter]  # type: ignore[index]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def rate(self, lr: float) -> None:
        for optimizer in self.optimizers.values():
            optimizer.param_groups[0]["lr"] = lr


def train(seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    namer = Namer(size)
    updated = UpdatedInBackward(namer, lr=0.01)
    leaps = torch.randint(1, LETTERS, (LETTERS,))
    curve = []
    for step in range(40):
        updated.rate(0.015 * min(1.0, (step + 1) / 5, (40 - step) / 20))
        name = [torch.randint(LETTERS, (16,))]
        while len(name) < LENGTH:
            name.append((name[-1] + leaps[name[-1]]) % LETTERS)
        letters = torch.stack(name, 1)
        scores = namer(letters[:, :-1])
        loss = F.cross_entropy(scores.flatten(0, 1), letters[:, 1:].flatten())
        loss.backward()
        curve.append(loss.item())
    return {"loss": curve}
