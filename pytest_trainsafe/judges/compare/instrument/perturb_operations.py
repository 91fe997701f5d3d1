"""Noise as small as rounding errors, on the result of every operation that rounds.

Noise at the outputs of modules (`perturb.py`) does not show how a module responds to rounding
inside it, such as in a saturated softmax or the gates of an LSTM.  This module intercepts
operations at the dispatcher, forward and backward.  Called by the recorder, inside the ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from pytest_trainsafe.compat.dispatch_modes import TorchDispatchMode
from pytest_trainsafe.judges.compare.instrument.perturb import Noise

#: Operations that round, by their names in ATen.  Copies, selections and comparisons are exact.
_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "dot", "vdot", "linear", "convolution")
_ELEMENTWISE = (
    *("add", "sub", "rsub", "mul", "div", "pow", "reciprocal", "sqrt", "rsqrt", "addcmul"),
    *("addcdiv", "lerp", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos"),
    *("tan", "tanh", "sigmoid", "log_sigmoid_forward", "erf", "erfc", "erfinv", "native_dropout"),
    *("gelu", "silu", "softplus", "mish", "elu", "celu", "selu", "hardsigmoid", "hardswish", "glu"),
)
_SUMS = (
    *("sum", "mean", "prod", "cumsum", "cumprod", "var", "std", "var_mean", "std_mean", "norm"),
    *("linalg_vector_norm", "_foreach_norm", "_softmax", "_log_softmax", "logsumexp"),
    *("logcumsumexp", "embedding_dense", "scatter_add", "index_add", "avg_pool2d"),
    "_adaptive_avg_pool2d",
)
_NORMS = (
    *("native_layer_norm", "native_group_norm", "native_batch_norm", "_native_batch_norm_legit"),
    "_fused_rms_norm",
)
_LOSSES = (
    *("nll_loss_forward", "nll_loss2d_forward", "mse_loss", "huber_loss", "smooth_l1_loss"),
    *("binary_cross_entropy", "binary_cross_entropy_with_logits"),
)
_FUSED = (
    *("_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_for_cpu"),
    *("_scaled_dot_product_efficient_attention", "_thnn_fused_lstm_cell", "_thnn_fused_gru_cell"),
    "_scaled_dot_product_fused_attention_overrideable",
)
_ROUNDED = frozenset((*_PRODUCTS, *_ELEMENTWISE, *_SUMS, *_NORMS, *_LOSSES, *_FUSED))

#: Suffixes of the names of backward operations.
_BACKWARD = ("_backward_data", "_backward", "_data")


class OperationNoise(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Applies a `Noise` to the floating-point results of all operations that round.

    Does not change views, nor tensors that an operation modifies in place.
    """

    def __init__(self, noise: Noise) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.noise = noise

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.__name__.partition(".")[0]
        if not is_rounded(name):
            return result
        if isinstance(result, tuple):
            return tuple(self._noisy(name, each) for each in result)
        return self._noisy(name, result)

    def _noisy(self, name: str, value: Any) -> Any:
        if isinstance(value, list):
            return [self._noisy(name, each) for each in value]
        if type(value) is not torch.Tensor or value.is_meta or value.layout != torch.strided:
            return value
        return self.noise(name, value)


def is_rounded(name: str) -> bool:
    """Whether an ATen operation rounds its results."""
    for suffix in _BACKWARD:
        name = name.removesuffix(suffix)
    return name in _ROUNDED
