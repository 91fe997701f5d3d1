"""Lets megatron-core train on a CPU with gloo.  `apply` changes nothing where CUDA is available.

megatron-core asks for the current CUDA device, makes tensors on "cuda", keeps CUDA's RNG states
and checks `Tensor.type()`.  Each function below replaces one of these; none changes numbers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

_FACTORIES = ("tensor", "zeros", "ones", "empty", "full", "arange", "zeros_like", "empty_like")


def apply() -> None:
    """Install every replacement, once a process."""
    if torch.cuda.is_available() or getattr(torch.cuda, "_cpu_stand_in", False):
        return
    torch.cuda._cpu_stand_in = True  # type: ignore[attr-defined]
    _current_device()
    _factories()
    _generators()
    _tensor_type()
    _norm_with_sequence_parallelism()


def _current_device() -> None:
    torch.cuda.current_device = lambda: "cpu"  # type: ignore[assignment,return-value]
    torch.cuda.synchronize = lambda device=None: None
    torch.Tensor.cuda = lambda self, *args, **kwargs: self  # type: ignore[method-assign]


def _factories() -> None:
    for name in _FACTORIES:
        setattr(torch, name, _on_cpu(getattr(torch, name)))


def _on_cpu(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(make)
    def made(*args: Any, **kwargs: Any) -> torch.Tensor:
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = "cpu"
        kwargs.pop("pin_memory", None)
        return make(*args, **kwargs)

    return made


def _generators() -> None:
    """On a CPU, dropout draws from the CPU's generator, so it replaces that of CUDA."""
    from megatron.core.tensor_parallel import random

    def get(*args: Any, **kwargs: Any) -> torch.Tensor:
        return torch.get_rng_state()

    def set_(state: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        torch.set_rng_state(state)

    torch.cuda.get_rng_state = get
    torch.cuda.set_rng_state = set_  # type: ignore[assignment]
    torch.cuda.manual_seed = lambda seed: torch.manual_seed(seed)  # type: ignore[assignment]
    random._get_cuda_rng_state, random._set_cuda_rng_state = get, set_


def _tensor_type() -> None:
    own = torch.Tensor.type

    def type_(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        found = own(self, *args, **kwargs)
        if isinstance(found, str):
            return found.replace("torch.", "torch.cuda.", 1)
        return found

    torch.Tensor.type = type_  # type: ignore[method-assign,assignment]


def _norm_with_sequence_parallelism() -> None:
    """The local norm rejects sequence parallelism, which needs only an attribute of parameters."""
    from megatron.core.transformer.torch_norm import WrappedTorchNorm

    make = WrappedTorchNorm.__new__

    def new(cls: type, config: Any, *args: Any, **kwargs: Any) -> torch.nn.Module:
        split, config.sequence_parallel = config.sequence_parallel, False
        try:
            norm: torch.nn.Module = make(cls, config, *args, **kwargs)
        finally:
            config.sequence_parallel = split
        for parameter in norm.parameters():
            parameter.sequence_parallel = split  # type: ignore[attr-defined]
        return norm

    WrappedTorchNorm.__new__ = new
