"""Stack Overflow 60335387 (TrainCheck's B4): gradients accumulate, because nothing clears them.

https://stackoverflow.com/questions/60335387/pytorch-mnist-example-not-converge: the loop lacks
`optimizer.zero_grad()`, so every backward adds to the gradients of all earlier steps.
"""

from __future__ import annotations

import torch
from torch import nn

from pytest_trainsafe.reference_models.training.outcome import Outcome


def train(*, faulty: bool, seed: int = 0, steps: int = 6) -> Outcome:
    """Train a perceptron.

    In the Outcome, `facts["carried"]` has, for each step, the sum of the norms of the gradients
    that exist before its backward.
    """
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    prototypes = torch.randn(10, 8, 8)
    losses, carried = [], []
    for _ in range(steps):
        labels = torch.randint(10, (32,))
        images = prototypes[labels] + 0.3 * torch.randn(32, 8, 8)
        if not faulty:
            optimizer.zero_grad()
        left = [each.grad for each in model.parameters() if each.grad is not None]
        carried.append(sum(float(each.norm()) for each in left))
        loss = criterion(model(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return Outcome(losses, {"carried": carried})
