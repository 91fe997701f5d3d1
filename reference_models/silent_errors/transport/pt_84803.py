"""PyTorch 84803 (TrainCheck's B2): a batch arrives on the second GPU as zeros.

https://github.com/pytorch/pytorch/issues/84803: `x.to(1)` of a tensor on GPU 0 returns zeros or
garbage; peer-to-peer copies were broken by the IOMMU setting of the machine.
"""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn import functional as F

from pytest_trainsafe.reference_models.silent_errors.transport.lossy import LossyLink
from pytest_trainsafe.reference_models.toolkit.devices import Link
from pytest_trainsafe.reference_models.training.outcome import Outcome


def train(*, faulty: bool, seed: int = 0, steps: int = 6) -> Outcome:
    """Train two replicas, each on half of the batch.

    In the Outcome, `facts["arrived"]` has, for each step, the norm of the second half of the inputs
    after their copy to the second device.
    """
    torch.manual_seed(seed)
    link = LossyLink() if faulty else Link()
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses, arrived = [], []
    for _ in range(steps):
        labels = torch.randint(4, (32,))
        inputs = torch.randn(32, 16)
        inputs[torch.arange(32), labels] += 3.0
        optimizer.zero_grad()
        second = copy.deepcopy(model)
        there = link.copy(inputs[16:])
        here_loss = F.cross_entropy(model(inputs[:16]), labels[:16])
        there_loss = F.cross_entropy(second(there), labels[16:])
        here_loss.backward()  # type: ignore[no-untyped-call]
        there_loss.backward()  # type: ignore[no-untyped-call]
        for mine, other in zip(model.parameters(), second.parameters(), strict=True):
            assert mine.grad is not None
            assert other.grad is not None
            mine.grad = (mine.grad + other.grad) / 2
        optimizer.step()
        losses.append((here_loss.item() + there_loss.item()) / 2)
        arrived.append(float(there.norm()))
    return Outcome(losses, {"arrived": arrived})
