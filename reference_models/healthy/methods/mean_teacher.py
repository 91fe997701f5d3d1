"""Mean teacher (Tarvainen and Valpola, 2017): an average of the student labels what has no labels.

The average covers parameters; buffers are copied.  Its weight and that of the consistency rise
with the steps, and only the teacher is evaluated.
"""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class ModelEMA:
    """An exponential moving average of a model, which runs in evaluation mode."""

    def __init__(self, model: nn.Module, decay: float, tau: float) -> None:
        self.ema = copy.deepcopy(model).eval()
        self.updates = 0
        self.decay = lambda x: decay * (1 - math.exp(-x / tau))
        for p in self.ema.parameters():
            p.requires_grad_(False)

    def update(self, model: nn.Module) -> None:
        """Move the average towards the model, after the optimizer's step."""
        self.updates += 1
        d = self.decay(self.updates)  # type: ignore[no-untyped-call]
        state = model.state_dict()
        for k, v in self.ema.state_dict().items():
            if v.dtype.is_floating_point:
                v *= d
                v += (1 - d) * state[k].detach()


def noisy(x: Tensor) -> Tensor:
    return x + 0.15 * torch.randn_like(x)


def rampup(step: int, length: int) -> float:
    phase = 1.0 - min(step, length) / length
    return math.exp(-5.0 * phase * phase)


def train(
    *,
    seed: int = 0,
    steps: int = 12,
    width: int = 16,
    decay: float = 0.9,
    ramp: int = 8,
    teacher_noise: bool = True,
) -> list[float]:
    """Classify clusters of which a quarter of the examples has labels."""
    torch.manual_seed(seed)
    centres = 2 * torch.randn(4, 8)
    student = nn.Sequential(
        nn.Linear(8, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.2), nn.Linear(width, 4)
    )
    teacher = ModelEMA(student, decay, tau=4.0)
    optimizer = torch.optim.AdamW(student.parameters(), lr=2e-2)
    test_y = torch.arange(40) % 4
    test_x = centres[test_y] + 0.5 * torch.randn(40, 8)
    losses = []
    for step in range(steps):
        student.train()
        y = torch.randint(4, (32,))
        x = centres[y] + 0.5 * torch.randn(32, 8)
        y[8:] = -1  # no label
        logits = student(noisy(x))
        with torch.no_grad():
            soft = teacher.ema(noisy(x) if teacher_noise else x).softmax(dim=-1)
        supervised = F.cross_entropy(logits, y, ignore_index=-1)
        consistency = F.mse_loss(logits.softmax(dim=-1), soft)
        loss = supervised + 2.0 * rampup(step, ramp) * consistency
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(student.parameters(), 10.0)
        optimizer.step()
        teacher.update(student)
        with torch.inference_mode():
            losses.append(float(F.cross_entropy(teacher.ema(test_x), test_y)))
    return losses
