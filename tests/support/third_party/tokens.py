"""The data of the language models: each micro-batch of a step has different tokens."""

from __future__ import annotations

import torch

VOCABULARY, BATCH, LENGTH = 64, 2, 16


def tokens(step: int, microbatch: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * step + microbatch)
    return torch.randint(VOCABULARY, (BATCH, LENGTH), generator=generator)
