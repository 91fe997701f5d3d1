"""The cross entropy of every token, not averaged.  It is the last module of a language model."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class CrossEntropy(nn.Module):
    """Maps logits [batch, sequence, vocabulary] and targets [batch, sequence] to losses.

    The losses have the shape of the targets.  They are computed and returned in float32, or in
    float64 if the logits are float64.
    """

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        wide = torch.promote_types(logits.dtype, torch.float32)
        flat = logits.to(wide).flatten(0, 1)
        return F.cross_entropy(flat, targets.flatten(), reduction="none").view_as(targets)
