"""Greedy decoding within a window of positions."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


class Generator:
    """Decodes with a model that maps token ids of at most `window` positions to logits."""

    def __init__(self, model: Callable[[Tensor], Tensor], window: int) -> None:
        self.model, self.window = model, window

    @torch.no_grad()
    def generate(self, prompt: Tensor, max_new_tokens: int) -> Tensor:
        """Return the ids that follow `prompt`, `max_new_tokens` for every row."""
        ids, length = self.fit(prompt, max_new_tokens)
        start = ids.shape[1]
        while ids.shape[1] < length:
            following = self.model(ids[:, -self.window :])[:, -1].argmax(dim=-1, keepdim=True)
            ids = torch.cat([ids, following], dim=1)
        return ids[:, start:]

    def fit(self, prompt: Tensor, max_new_tokens: int) -> tuple[Tensor, int]:
        """Return the last part of the prompt, and the total length at which to stop.

        The part has at most half of the window's positions, so that new tokens fit into the rest.
        """
        kept = prompt[:, -(self.window // 2) :]
        return kept, kept.shape[1] + max_new_tokens
