"""Random features that never learn, and a readout that L-BFGS fits on all examples at once."""

import torch
from torch import nn


def train(seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    angles = torch.rand(150, 2) * 4 - 2
    heights = (angles[:, 0] * 2).sin() * angles[:, 1].cos()
    features = nn.Sequential(nn.Linear(2, 4 * size), nn.Softsign())
    for parameter in features.parameters():
        parameter.requires_grad = False
        parameter.mul_(2)
    readout = nn.Linear(4 * size, 1)
    fitter = torch.optim.LBFGS(
        readout.parameters(), lr=0.7, max_iter=3, history_size=6, line_search_fn="strong_wolfe"
    )
    penalty = 1e-4

    def closure() -> torch.Tensor:
        fitter.zero_grad()
        error = (readout(features(angles)).squeeze(1) - heights).square().mean()
        loss = error + penalty * readout.weight.square().sum()
        loss.backward()
        return loss

    losses = [fitter.step(closure).item() for _ in range(18)]
    polish = torch.optim.Adam(readout.parameters(), lr=1e-3)
    losses += [polish.step(closure).item() for _ in range(6)]
    return {"loss": losses}
