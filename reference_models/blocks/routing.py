"""Decides which experts a token goes to: scores, choice, balance, capacity.

Used by `moe_layer.py` and `deepseek_moe.py`.  Balance and capacity are counted over one whole
micro-batch.  With dp, each rank has whole micro-batches, so the counts do not depend on the number
of ranks.  With cp or sp, each rank has only a part of the sequences of a micro-batch;
`parallel/experts/routing.py` then combines the choices of these ranks.  The biases of
`BiasedSelection` follow from the choices of a whole step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pytest_trainsafe.reference_models.config import DeepSeekConfig, ExpertsConfig, MoEConfig


class Router(nn.Module):
    """Maps [batch, sequence, hidden] to the experts' probabilities [batch, sequence, experts].

    Computed in float32, or in float64 if the hidden states are float64.
    """

    def __init__(self, config: ExpertsConfig) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(config.experts, config.hidden))

    def forward(self, hidden: Tensor) -> Tensor:
        return self.logits(hidden).softmax(dim=-1)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the products of hidden states and the experts' vectors."""
        wide = torch.promote_types(hidden.dtype, torch.float32)
        return F.linear(hidden.to(wide), self.weight.to(wide))


class SigmoidRouter(Router):
    """Maps hidden states to the experts' scores, each from 0 to 1 and independent of the others.

    (DeepSeek-AI 2024, "DeepSeek-V3", section 2.1.2.)
    """

    def forward(self, hidden: Tensor) -> Tensor:
        return self.logits(hidden).sigmoid()


class Selection(nn.Module):
    """Maps probabilities to the numbers of the `top_k` most probable experts, best first."""

    def __init__(self, config: ExpertsConfig) -> None:
        super().__init__()
        self.top_k = config.top_k

    def forward(self, probabilities: Tensor) -> Tensor:
        return probabilities.topk(self.top_k, dim=-1).indices


class BiasedSelection(Selection):
    """Maps scores to the numbers of the `top_k` experts with the largest sums of score and bias.

    The bias of an expert that was chosen too rarely rises after a step, and that of one that was
    chosen too often falls, each by `speed` (Wang et al. 2024, "Auxiliary-loss-free load balancing
    strategy for mixture-of-experts", algorithm 1).  The bias enters nothing but the choice.
    It is float32 if the model is narrower, where a few steps would end its growth.
    """

    def __init__(self, config: DeepSeekConfig) -> None:
        super().__init__(config)
        self.speed = config.bias_speed
        self.bias: Tensor
        self.register_buffer("bias", torch.zeros(config.experts))
        #: How often each expert was chosen since the bias was last updated, int64.
        self.counts = torch.zeros(config.experts, dtype=torch.int64)

    def forward(self, probabilities: Tensor) -> Tensor:
        return super().forward(probabilities + self.bias)

    def count(self, chosen: Tensor) -> None:
        """Add choices to the counts.

        A recomputed layer runs twice, with autograd once; that run counts.
        """
        if torch.is_grad_enabled():
            self.counts += torch.bincount(chosen.flatten(), minlength=len(self.counts))

    @torch.no_grad()
    def update(self, counts: Tensor) -> None:
        """Change the bias after a step, in which experts were chosen `counts` times on all ranks.

        Integers decide, because a sum in a narrow dtype could have the wrong sign.
        """
        lacking = (counts.sum() - len(counts) * counts).sign()
        self.bias += self.speed * lacking.to(self.bias.dtype)
        self.counts = torch.zeros_like(counts)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        bias = self.bias
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        wide = torch.promote_types(self.bias.dtype, torch.float32)
        self.bias = bias.to(device=self.bias.device, dtype=wide)
        self.counts = self.counts.to(self.bias.device)
        return self


class Balance(nn.Module):
    """Maps probabilities and choices to each token's part of the balancing loss.

    The result has the shape [batch, sequence].  Its mean over the micro-batch is `coefficient *
    experts * sum over e of f(e) * p(e)`, where f(e) is the share of the choices that expert e got,
    and p(e) its mean probability (Fedus et al. 2021, section 2.2).  The mean equals the coefficient
    if all experts are chosen equally often.
    """

    def __init__(self, config: MoEConfig) -> None:
        super().__init__()
        self.experts, self.coefficient = config.experts, config.balance

    def forward(self, probabilities: Tensor, chosen: Tensor) -> Tensor:
        counts = self.count(chosen)
        share = (counts / counts.sum()).to(probabilities.dtype)
        return self.coefficient * self.experts * (probabilities * share).sum(dim=-1)

    def count(self, chosen: Tensor) -> Tensor:
        """Return how often each expert was chosen in the micro-batch, int64 of shape [experts]."""
        return torch.bincount(chosen.flatten(), minlength=self.experts)


class Capacity(nn.Module):
    """Drops the choices of experts that are full.

    Maps the numbers of the chosen experts to the same numbers, with each dropped choice replaced by
    `experts`: experts are numbered from 0, so no expert has this number.  An expert takes at most
    `capacity_factor` times its even share of a micro-batch's choices, rounded up; a factor of 0
    drops nothing.  Experts take the first choices of all tokens before any second choice, and the
    choices of earlier tokens before those of later ones, row by row (Lepikhin et al. 2020,
    algorithm 1).
    """

    def __init__(self, config: MoEConfig) -> None:
        super().__init__()
        self.experts, self.factor = config.experts, config.capacity_factor

    def forward(self, chosen: Tensor) -> Tensor:
        if not self.factor:
            return chosen
        return chosen.masked_fill(~self.fits(chosen), self.experts)

    def fits(self, chosen: Tensor) -> Tensor:
        """Return whether the chosen expert has room, for each choice [batch, sequence, top_k].

        `chosen` has the choices of a whole micro-batch.
        """
        room = math.ceil(self.factor * chosen.numel() / self.experts)
        in_order = chosen.movedim(-1, 0).flatten()
        places = F.one_hot(in_order, self.experts).cumsum(dim=0).gather(1, in_order[:, None])
        return (places <= room).view(chosen.shape[-1], *chosen.shape[:-1]).movedim(0, -1)
