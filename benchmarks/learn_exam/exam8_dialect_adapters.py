"""Words of dialects: a network for one dialect gets adapters for another, trained in two sessions.

Follows https://github.com/KadoBOT/ComfyUI-YuE2-Voices/issues/17.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SOUNDS, WORDS, RANK = 10, 8, 2


class Adapted(nn.Module):
    """A frozen layer and the product of two narrow matrices, scaled by alpha over the rank."""

    def __init__(self, base: nn.Linear, alpha: float = RANK) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(RANK, base.in_features) / base.in_features**0.5)
        self.up = nn.Parameter(torch.zeros(base.out_features, RANK))
        self.alpha = alpha

    def forward(self, x: Tensor) -> Tensor:
        added = F.linear(F.linear(x, self.down), self.up)
        out: Tensor = self.base(x) + self.alpha / RANK * added
        return out


class Dialect:
    """Words said in a dialect, which turns the sounds of the common language."""

    def __init__(self, source: torch.Generator, common: Tensor, turned: float) -> None:
        self.source = source
        self.law = common + turned * torch.randn(common.shape, generator=source)

    def said(self) -> tuple[Tensor, Tensor]:
        sounds = torch.randn(32, SOUNDS, generator=self.source)
        return sounds, (sounds @ self.law).argmax(1)


def fit(net: nn.Module, dialect: Dialect, steps: int, lr: float) -> list[float]:
    learned = [each for each in net.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(learned, lr=lr)
    curve = []
    for _ in range(steps):
        sounds, word = dialect.said()
        loss = F.cross_entropy(net(sounds), word)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        curve.append(loss.item())
    return curve


def save(adapted: list[Adapted]) -> dict[str, Tensor]:
    state: dict[str, Tensor] = {}
    for at, each in enumerate(adapted):
        state |= {f"{at}.down": each.down.detach(), f"{at}.up": each.up.detach()}
        state[f"{at}.alpha"] = torch.tensor(each.alpha)
    return {name: each.clone() for name, each in state.items()}


def load(bases: list[nn.Linear], state: dict[str, Tensor], scaled: bool) -> list[Adapted]:
    adapted = []
    for at, base in enumerate(bases):
        alpha = state[f"{at}.alpha"].item() if scaled else RANK
        each = Adapted(base, alpha)
        with torch.no_grad():
            each.down.copy_(state[f"{at}.down"])
            each.up.copy_(state[f"{at}.up"])
        adapted.append(each)
    return adapted


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    source = torch.Generator().manual_seed(seed)
    common = torch.randn(SOUNDS, WORDS, generator=source)
    bases = [nn.Linear(SOUNDS, 2 * size), nn.Linear(2 * size, WORDS)]
    fit(nn.Sequential(bases[0], nn.Tanh(), bases[1]), Dialect(source, common, 0), 25, lr=0.02)
    island = Dialect(source, common, 0.8)
    adapted = [Adapted(base, alpha=4 * RANK) for base in bases]
    curve = fit(nn.Sequential(adapted[0], nn.Tanh(), adapted[1]), island, 24, lr=0.01)
    again = load(bases, save(adapted), scaled=healthy)
    curve += fit(nn.Sequential(again[0], nn.Tanh(), again[1]), island, 24, lr=0.01)
    return {"loss": curve}
