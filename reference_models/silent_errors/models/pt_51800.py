"""PyTorch 51800 (TrainCheck's B19): spectral normalisation, evaluated before it was trained.

https://github.com/pytorch/pytorch/issues/51800: `torch.nn.utils.spectral_norm` estimates the
largest singular value by power iteration, which starts at random vectors and runs in forwards in
training mode only.  If a model is evaluated first, the estimate still comes from the random
vectors, and the layers' outputs are orders of magnitude too large.  The function still behaves so;
its successor in `torch.nn.utils.parametrizations` iterates when it is applied.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import spectral_norm

from pytest_trainsafe.reference_models.training.outcome import Outcome


class Discriminator(nn.Module):
    """Two spectrally normalised layers and a linear one."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = spectral_norm(nn.Linear(width, 64), n_power_iterations=5)
        self.second = spectral_norm(nn.Linear(64, 64), n_power_iterations=5)
        self.score = nn.Linear(64, 1)

    def features(self, inputs: Tensor) -> Tensor:
        """The output of the normalised layers; its norm cannot exceed the input's by much."""
        hidden: Tensor = self.second(F.leaky_relu(self.first(inputs), 0.2))
        return hidden

    def forward(self, inputs: Tensor) -> Tensor:
        """One score for each input."""
        scores: Tensor = self.score(F.leaky_relu(self.features(inputs), 0.2))
        return scores


def train(*, faulty: bool, seed: int = 0, steps: int = 4) -> Outcome:
    """Measure the response of a discriminator, then train it against noise.

    Without the error a forward in the training mode comes first, as the issue recommends.
    """
    torch.manual_seed(seed)
    model = Discriminator(width=32)
    probe = torch.randn(64, 32)
    if not faulty:
        model.train()
        model(probe)
    model.eval()
    with torch.no_grad():
        gain = float(model.features(probe).norm() / probe.norm())
    model.train()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3, betas=(0.5, 0.999))
    losses = []
    for _ in range(steps):
        real = torch.randn(32, 32).abs()
        optimizer.zero_grad()
        loss = F.relu(1 - model(real)).mean() + F.relu(1 + model(torch.randn(32, 32))).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    return Outcome(losses, {"gain": gain})
