"""Semantics of fused kernels that graphs of Megatron-LM and vLLM contain, and of dropout.

Registered under the kernels' own names, as a project registers those of its kernels.  Where a
kernel writes into its arguments, the rule returns what they hold afterwards, in the order of the
schema: so `auto_functionalized` returns it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from pytest_trainsafe.arithmetic import Numbers, Semantics, semantics_of, table
from pytest_trainsafe.arithmetic.semantics.examples import none
from pytest_trainsafe.arithmetic.semantics.layers.normalization import (
    layer_norm,
    layer_norm_backward,
)
from pytest_trainsafe.judges.refine.errors import CannotSayError

#: What each entry that replaces one of the table assumes.
ASSUMED = {
    "aten.native_dropout": "dropout keeps every element, multiplied by 1 / (1 - p)",
    "aten.native_dropout_backward": "dropout keeps every element, multiplied by 1 / (1 - p)",
}
_DRAWING = (
    "bernoulli", "bernoulli_", "uniform", "exponential", "log_normal", "random",
    "normal_functional", "normal_", "rand", "randn", "rand_like", "randn_like", "randint_like",
    "randint",
)  # fmt: skip


@semantics_of("apex.fused_layer_norm_affine_fwd", examples=none)
def fused_layer_norm(
    n: Numbers,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    shape: Sequence[int],
    eps: float,
) -> tuple[torch.Tensor, ...]:
    """Layer norm; apex returns means and inverse deviations as vectors."""
    y, mean, rstd = layer_norm(n, x, shape, weight, bias, eps)
    return y, mean.reshape(-1), rstd.reshape(-1)


@semantics_of("apex.fused_layer_norm_affine_bwd", examples=none)
def fused_layer_norm_backward(
    n: Numbers,
    grad: torch.Tensor,
    mean: torch.Tensor,
    rstd: torch.Tensor,
    x: torch.Tensor,
    shape: Sequence[int],
    weight: torch.Tensor,
    bias: torch.Tensor,
    eps: float,
    memory_efficient: bool = False,
) -> tuple[torch.Tensor | None, ...]:
    outer = (*x.shape[: x.ndim - len(shape)], *(1 for _ in shape))
    if memory_efficient:
        raise CannotSayError("apex's memory efficient layer norm has no semantics")
    means, deviations = mean.reshape(outer), rstd.reshape(outer)
    mask = [True, True, True]
    return layer_norm_backward(n, grad, x, shape, means, deviations, weight, bias, mask)


def _rms(n: Numbers, x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    rstd = n.rsqrt(n.add(n.mean(n.square(x), -1, True), epsilon))
    return n.multiply(n.multiply(x, rstd), weight)


@semantics_of("_C.rms_norm", examples=none)
def rms_norm(
    n: Numbers, result: torch.Tensor, input: torch.Tensor, weight: torch.Tensor, epsilon: float
) -> tuple[torch.Tensor, ...]:
    return (_rms(n, input, weight, epsilon),)


@semantics_of("_C.fused_add_rms_norm", examples=none)
def fused_add_rms_norm(
    n: Numbers, input: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, epsilon: float
) -> tuple[torch.Tensor, ...]:
    total = n.add(input, residual)
    return _rms(n, total, weight, epsilon), total


@semantics_of("_C.silu_and_mul", examples=none)
def silu_and_mul(n: Numbers, out: torch.Tensor, input: torch.Tensor) -> tuple[torch.Tensor, ...]:
    gate, up = input.chunk(2, -1)
    return (n.multiply(n.multiply(gate, n.sigmoid(gate)), up),)


@semantics_of("_C.rotary_embedding", examples=none)
def rotary_embedding(
    n: Numbers,
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    head_size: int,
    cos_sin_cache: torch.Tensor,
    is_neox: bool,
) -> tuple[torch.Tensor, ...]:
    """Rotates pairs of each head; the cache has a row of cosines, then sines, for each position."""
    cos, sin = (each[..., None, :] for each in cos_sin_cache[positions].chunk(2, -1))
    return tuple(_rotated(n, x, head_size, cos, sin, is_neox) for x in (query, key))


def _rotated(
    n: Numbers, x: torch.Tensor, size: int, cos: torch.Tensor, sin: torch.Tensor, halves: bool
) -> torch.Tensor:
    heads = x.reshape(*x.shape[:-1], -1, size)
    turned, rest = heads[..., : 2 * cos.shape[-1]], heads[..., 2 * cos.shape[-1] :]
    pairs = turned.chunk(2, -1) if halves else (turned[..., ::2], turned[..., 1::2])
    first = n.subtract(n.multiply(pairs[0], cos), n.multiply(pairs[1], sin))
    second = n.add(n.multiply(pairs[1], cos), n.multiply(pairs[0], sin))
    both = (
        torch.cat((first, second), -1) if halves else torch.stack((first, second), -1).flatten(-2)
    )
    return torch.cat((both, rest), -1).reshape(x.shape)


@semantics_of("vllm.unified_attention_with_output", examples=none)
def unified_attention(
    n: Numbers,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    output: torch.Tensor,
    layer_name: str,
    **options: object,
) -> tuple[torch.Tensor, ...]:
    """Causal attention over one sequence, [tokens, heads, size]; key heads serve equal shares."""
    shares = query.shape[1] // key.shape[1]
    q, k, v = (
        each.repeat_interleave(share, 1).transpose(0, 1)
        for each, share in ((query, 1), (key, shares), (value, shares))
    )
    scores = n.multiply(n.matmul(q, k.transpose(1, 2)), 1 / math.sqrt(query.shape[-1]))
    kept = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    weights = n.exp(n.bounded(n.where(kept, scores, -math.inf), -1))
    weights = n.divide(weights, n.sum(weights, -1, True))
    return (n.matmul(weights, v).transpose(0, 1).contiguous(),)


def _dropout(
    n: Numbers, x: torch.Tensor, p: float, train: bool | None
) -> tuple[torch.Tensor, torch.Tensor]:
    mask = torch.ones(x.shape, dtype=torch.bool)
    if train is False or p == 0:
        return x.clone(), mask
    return n.divide(x, n.subtract(1, p)), mask


def _dropout_backward(
    n: Numbers, grad: torch.Tensor, mask: torch.Tensor, scale: float
) -> torch.Tensor:
    return n.multiply(grad, scale)


def semantics() -> dict[str, Semantics]:
    """The table by which graphs are evaluated.

    Masks of dropout differ between ranks by design, and a graph does not say how they relate; so
    dropout keeps every element.  Other random operators are missing: nothing can be said of them.
    """
    found = table()
    for name in _DRAWING:
        found.pop(f"aten.{name}", None)
    for name, rule in (
        ("aten.native_dropout", _dropout),
        ("aten.native_dropout_backward", _dropout_backward),
    ):
        found[name] = Semantics(name, rule, none)
    for name in ("aten.lift_fresh", "aten.lift_fresh_copy"):  # Constants are numbers already.
        found[name] = Semantics(name, None, none)
    return found
