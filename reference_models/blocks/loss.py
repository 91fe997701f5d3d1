"""Cross entropy of every token, not yet averaged: the last module of the GPT."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class CrossEntropy(nn.Module):
    """Logits [batch, sequence, vocabulary] and targets [batch, sequence] to losses, as targets.

    Computed and returned in float32, or in float64 where the logits are.
    """

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        wide = torch.promote_types(logits.dtype, torch.float32)
        flat = logits.to(wide).flatten(0, 1)
        return F.cross_entropy(flat, targets.flatten(), reduction="none").view_as(targets)
