"""Attention over cp with keys and values passed round a ring, so that no rank ever holds all.

See Liu et al. 2023, "Ring Attention".  The softmax is computed part by part, as in Dao et al. 2022,
"Flash Attention".  Everything is computed in float32, or in float64 if the inputs are float64.
"""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import Tensor

from pytest_trainsafe.reference_models.blocks.attention import CoreAttention, heads_of
from pytest_trainsafe.reference_models.parallel.axes import Axes, Axis
from pytest_trainsafe.reference_models.parallel.collectives import pass_on
from pytest_trainsafe.reference_models.parallel.context.zigzag import take_part


class RingAttention(CoreAttention):
    """Attention over keys and values that are passed round a ring.

    Queries, keys, values and the result have the shape [batch, sequence / cp, heads * head_dim],
    where values and the result may have heads of another width.
    """

    def __init__(self, head_dim: int, axes: Axes) -> None:
        super().__init__(head_dim)
        self.axes = axes

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        query, key, value = heads_of(query, key, value, self.head_dim)
        mixed = cast(Tensor, _Ring.apply(query, key, value, self.axes))  # type: ignore[no-untyped-call]
        return mixed.transpose(1, 2).flatten(2)


class _Ring(torch.autograd.Function):
    """Ring attention of tensors of shape [batch, heads, sequence / cp, width of a head]."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, axes: Axes) -> Tensor:
        wide = torch.promote_types(query.dtype, torch.float32)
        q, visiting, cp = query.to(wide), torch.cat([key, value], dim=-1), axes.cp
        widths = [key.shape[-1], value.shape[-1]]
        peak = q.new_full((*q.shape[:-1], 1), -math.inf)
        total, mixed = torch.zeros_like(peak), q.new_zeros((*q.shape[:-1], widths[1]))
        for turn in range(cp.size):
            k, v = torch.split(visiting.to(wide), widths, dim=-1)
            scores = _scores(q, k, cp, turn)
            # The first keys are this rank's own, of which each query sees at least its own token's.
            higher = torch.maximum(peak, scores.amax(dim=-1, keepdim=True))
            powers, fading = (scores - higher).exp(), (peak - higher).exp()
            total = total * fading + powers.sum(dim=-1, keepdim=True)
            mixed = mixed * fading + powers @ v
            peak = higher
            if turn < cp.size - 1:
                visiting = pass_on(visiting, cp)
        mixed = mixed / total
        ctx.save_for_backward(query, key, value, mixed, peak + total.log())
        ctx.axes = axes
        return mixed.to(query.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        query, key, value, mixed, log_total = ctx.saved_tensors
        cp = ctx.axes.cp
        if ctx.axes.planted("cp-attention-backward-layout"):
            # Like a kernel that receives a data pointer and ignores the strides.
            strides = torch.empty_like(gradient, memory_format=torch.contiguous_format).stride()
            gradient = gradient.as_strided(gradient.shape, strides)
        gradient, q = gradient.to(mixed.dtype), query.to(mixed.dtype)
        dot = (gradient * mixed).sum(dim=-1, keepdim=True)
        dq = torch.zeros_like(q)
        # The gradients travel with their keys and values, and return to their rank at the end.
        widths = [key.shape[-1], value.shape[-1]] * 2
        none = torch.zeros_like(key), torch.zeros_like(value)
        visiting = torch.cat([key, value, *none], dim=-1).to(mixed.dtype)
        for turn in range(cp.size):
            k, v, dk, dv = torch.split(visiting, widths, dim=-1)
            weights = (_scores(q, k, cp, turn) - log_total).exp()
            into_scores = weights * (gradient @ v.mT - dot) / math.sqrt(q.shape[-1])
            dq = dq + into_scores @ k
            dk, dv = dk + into_scores.mT @ q, dv + weights.mT @ gradient
            visiting = pass_on(torch.cat([k, v, dk, dv], dim=-1), cp)
        dk, dv = torch.split(visiting.to(key.dtype), widths, dim=-1)[2:]
        return dq.to(query.dtype), dk, dv, None


def _scores(query: Tensor, key: Tensor, cp: Axis, turn: int) -> Tensor:
    """The scores of this rank's queries for `key`, the keys that it holds after `turn` passes.

    After 0 passes round the ring, a rank holds its own keys; after 1 pass, those of the rank
    before.  The score is -inf for a key of a later token than the query's.
    """
    whole = torch.arange(query.shape[-2] * cp.size, device=query.device)
    owner = Axis(cp.size, (cp.rank - turn) % cp.size)
    future = take_part(whole, cp, dim=0)[:, None] < take_part(whole, owner, dim=0)
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    return scores.masked_fill(future, -math.inf)
