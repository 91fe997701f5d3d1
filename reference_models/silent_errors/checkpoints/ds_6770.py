"""DeepSpeed 6770 (TrainCheck, Table 5): the optimizer's parameters are not the model's.

https://github.com/deepspeedai/DeepSpeed/issues/6770, first reported as issue 3718: an optimizer
with parameters that the model does not have makes `deepspeed.initialize` end in a KeyError in the
code that names parameters, far from the line that caused it.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from pytest_trainsafe.reference_models.toolkit.engine import Engine
from pytest_trainsafe.reference_models.training.outcome import Outcome


def train(*, faulty: bool, seed: int = 0, steps: int = 4) -> Outcome:
    """Train with a new head.

    With the error, the optimizer is created before the head, and the engine raises KeyError.
    """
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 10))
    head = nn.Linear(24, 3)
    if faulty:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        model[2] = head
    else:
        model[2] = head
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    engine = Engine(model, optimizer)
    losses = []
    for _ in range(steps):
        inputs = torch.randn(32, 12)
        loss = F.cross_entropy(model(inputs), inputs[:, :3].argmax(dim=1))
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return Outcome(losses, {"names": engine.names})
