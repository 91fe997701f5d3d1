"""A connection that loses data, as peer-to-peer copies between GPUs did on faulty set-ups."""

from __future__ import annotations

import torch
from torch import Tensor

from pytest_trainsafe.reference_models.toolkit.devices import Link


class LossyLink(Link):
    """Delivers zeros for the last `share` of the elements, from copy number `after` on."""

    def __init__(self, after: int = 0, share: float = 1.0) -> None:
        self.after, self.share, self.copies = after, share, 0

    def carry(self, tensor: Tensor) -> Tensor:
        """Move a tensor to the other device; from copy number `after` on, lose a part of it."""
        arrived = super().carry(tensor)
        self.copies += 1
        if self.copies > self.after:
            flat = arrived.reshape(-1)
            kept = torch.arange(len(flat)) < (1 - self.share) * len(flat)
            arrived = (flat * kept).view_as(arrived)
        return arrived
