"""Scaled dot product attention: softmax(q k' * scale + mask) v, and its derivatives.

The derivatives are those of FlashAttention (Dao et al., 2022, appendix B): with P the weights,
dv = P' do, dP = do v', dS = P * (dP - sum(do * o)), dq = dS k * scale, dk = dS' q * scale.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch

from pytest_trainsafe.arithmetic.numbers import Numbers
from pytest_trainsafe.arithmetic.table import Call, Draw, call, semantics_of

Maybe = torch.Tensor | None


def _attentions(draw: Draw) -> Iterable[Call]:
    q, k, v = (draw(1, 2, 3, 4) / 4 for _ in range(3))
    return [
        call(q, k, v),
        call(q, k, v, 0.0, True),
        call(q, k, v, attn_mask=draw(3, 3), scale=0.25),
    ]


def _scores(
    n: Numbers, q: torch.Tensor, k: torch.Tensor, causal: bool, mask: Maybe, scale: float | None
) -> tuple[torch.Tensor, float]:
    if scale is None:
        scale = 1 / math.sqrt(q.shape[-1])
    scores = n.multiply(n.matmul(q, k.transpose(-1, -2)), scale)
    if mask is not None:
        scores = n.add(scores, mask)
    if causal:
        kept = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        scores = n.where(kept, scores, -math.inf)
    return scores, scale


@semantics_of("aten._scaled_dot_product_flash_attention_for_cpu", examples=_attentions)
def attention(
    n: Numbers,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    attn_mask: Maybe = None,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    scores, _ = _scores(n, q, k, is_causal, attn_mask, scale)
    largest = n.extreme(scores, -1, True)
    weights = n.exp(n.subtract(scores, largest))
    total = n.sum(weights, -1, True)
    result = n.divide(n.matmul(weights, v), total)
    if result.shape == q.shape:
        result = torch.empty_like(q, dtype=result.dtype).copy_(result)
    return result, _by_token(n.add(largest, n.log(total)).squeeze(-1))


def _by_token(x: torch.Tensor) -> torch.Tensor:
    """The tensor in the memory that torch's operator gives it, of which a program takes views.

    There the heads of a token are neighbours, although they are an earlier dimension.
    """
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def _gradients(draw: Draw) -> Iterable[Call]:
    for example in _attentions(draw):
        q, k, v, *rest = example.args
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            q, k, v, *rest, **example.kwargs
        )
        causal = bool(rest and rest[1])
        yield call(draw(*out.shape), q, k, v, out, lse, 0.0, causal, **example.kwargs)


@semantics_of("aten._scaled_dot_product_flash_attention_for_cpu_backward", examples=_gradients)
def attention_backward(
    n: Numbers,
    grad: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    dropout_p: float,
    is_causal: bool,
    attn_mask: Maybe = None,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    scores, scale = _scores(n, q, k, is_causal, attn_mask, scale)
    weights = n.exp(n.subtract(scores, lse.unsqueeze(-1)))
    inner = n.sum(n.multiply(grad, out), -1, True)
    slope = n.multiply(weights, n.subtract(n.matmul(grad, v.transpose(-1, -2)), inner))
    slope = n.multiply(slope, scale)
    return (
        _by_token(n.matmul(slope, k)),
        _by_token(n.matmul(slope.transpose(-1, -2), q)),
        _by_token(n.matmul(weights.transpose(-1, -2), grad)),
    )
