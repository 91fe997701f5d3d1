"""Baichuan2 86 (TrainCheck's B18): a model over two GPUs computes nonsense.

https://github.com/baichuan-inc/Baichuan2/issues/86: the model answers with nonsense, inf or NaN if
it is loaded on two cards, but not on one.  According to TrainCheck, the cause is a faulty driver
that loses data between the cards.  Here a part of the hidden states is lost.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from pytest_trainsafe.reference_models.silent_errors.transport.lossy import LossyLink
from pytest_trainsafe.reference_models.toolkit.devices import Link
from pytest_trainsafe.reference_models.training.outcome import Outcome

#: The step in which the driver begins to lose data; a step copies twice, forward and backward.
TRIGGER = 2


def train(*, faulty: bool, seed: int = 0, steps: int = 5) -> Outcome:
    """Train a model whose two halves are on different devices.

    In the Outcome, `facts["lost"]` has, for each step, the share of the hidden states that arrive
    as zeros on the second device.
    """
    torch.manual_seed(seed)
    link = LossyLink(after=2 * TRIGGER, share=0.25) if faulty else Link()
    lower = nn.Sequential(nn.Embedding(16, 24), nn.Linear(24, 24), nn.Tanh())
    upper = nn.Sequential(nn.LayerNorm(24), nn.Linear(24, 16))
    optimizer = torch.optim.AdamW([*lower.parameters(), *upper.parameters()], lr=1e-2)
    losses, lost = [], []
    for _ in range(steps):
        tokens = torch.randint(16, (8, 10))
        hidden = link.copy(lower(tokens))
        loss = F.cross_entropy(upper(hidden).flatten(0, 1), ((tokens + 1) % 16).flatten())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
        lost.append(float(hidden.eq(0).float().mean()))
    return Outcome(losses, {"lost": lost})
