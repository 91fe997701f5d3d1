"""Learns to name engine faults from sounds, with rough labels and the opinion of an older model."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

N_FAULTS = 16
N_BANDS = 20


def kd_loss(
    student_logits: Tensor, soft_targets: Tensor, temperature: float, *, over: str
) -> Tensor:
    pointwise = F.kl_div(
        F.log_softmax(student_logits / temperature, dim=1), soft_targets, reduction="none"
    )
    per_sound = pointwise.sum(1) if over == "faults" else pointwise.mean(1)
    return per_sound.mean() * temperature**2


class SoundBank:
    """Sounds with their faults; a third of the labels was written down wrongly."""

    def __init__(self, seed: int) -> None:
        self.g = torch.Generator().manual_seed(seed)
        self.spectra = torch.randn(N_FAULTS, N_BANDS, generator=self.g)

    def draw(self, n: int) -> tuple[Tensor, Tensor, Tensor]:
        fault = torch.randint(N_FAULTS, (n,), generator=self.g)
        sound = self.spectra[fault] + 0.5 * torch.randn(n, N_BANDS, generator=self.g)
        wrong = torch.rand(n, generator=self.g) < 0.35
        noted = torch.where(wrong, torch.randint(N_FAULTS, (n,), generator=self.g), fault)
        return sound, fault, noted

    def opinion(self, sound: Tensor, temperature: float) -> Tensor:
        return F.softmax(-torch.cdist(sound, self.spectra).square() / 2 / temperature, dim=1)


def train(healthy: bool = True, seed: int = 0, size: int = 32) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    bank = SoundBank(seed + 31)
    model = nn.Sequential(nn.Linear(N_BANDS, size), nn.ReLU(), nn.Linear(size, N_FAULTS))
    optim = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses, divergences = [], []
    for _ in range(50):
        sound, _, noted = bank.draw(48)
        soft = bank.opinion(sound, temperature=3.0)
        logits = model(sound)
        kd = kd_loss(logits, soft, 3.0, over="faults" if healthy else "elements")
        loss = 0.2 * F.cross_entropy(logits, noted) + 0.8 * kd
        optim.zero_grad()
        loss.backward()
        optim.step()
        losses.append(loss.item())
        with torch.no_grad():
            sound, fault, _ = bank.draw(200)
            divergences.append(F.cross_entropy(model(sound), fault).item())
    return {"loss": losses, "unseen": divergences}
