"""A wrong tensor, with everything that may explain it.  Made by the judge, read by the patterns."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from pytest_trainsafe.align.merge import Part
from pytest_trainsafe.judge.compare.errors import Norms, spread
from pytest_trainsafe.judge.compare.errors import norm as array_norm

#: An explanation may leave this share of the error unexplained, whatever rounding allows.
LEFT_OVER = 0.01

#: Tensors of fewer elements are easily explained by chance.
FEW = 4

#: So are those whose norm fewer elements carry than this (by participation ratio).
CARRIERS = 2


@dataclass(frozen=True, slots=True)
class Wrong:
    """A wrong logical tensor and its surroundings.

    `value` and `reference` are float64 or complex128, finite, and of one shape.  `parts` are the
    ranks' own, `sizes` the mesh axes' sizes, `factors` other numbers a value may be scaled by
    ("micro-batches").  `allowed` is the absolute norm that rounding explains, `slices` the same
    by index of each dimension (empty: none known).  `dtype` is the reference's recorded dtype.
    `earlier` holds the reference's values that came before, by what they are ("of step 0");
    `terms` the gradients of each micro-batch that a gradient is the sum of.
    """

    value: torch.Tensor
    reference: torch.Tensor
    parts: list[Part]
    sizes: Mapping[str, int]
    allowed: float
    kind: str = "activation"
    dtype: str = "float32"
    factors: Mapping[str, int] = field(default_factory=dict)
    slices: tuple[Norms, ...] = ()
    earlier: Mapping[str, torch.Tensor] = field(default_factory=dict)
    terms: Mapping[int, torch.Tensor] = field(default_factory=dict)
    error: float = field(init=False)

    def __post_init__(self) -> None:
        assert self.value.shape == self.reference.shape
        object.__setattr__(self, "error", norm(self.value - self.reference))

    def explains(self, value: torch.Tensor, target: torch.Tensor | None = None) -> bool:
        """Whether `value` is the reference (or `target`), up to rounding or a hundredth."""
        return self.settles(norm(value - (self.reference if target is None else target)))

    def settles(self, left: float) -> bool:
        """Whether what an explanation leaves of the error is rounding, or a hundredth."""
        share = 0.25 if self.value.numel() >= FEW else 0.05
        return left <= max(min(3 * self.allowed, share * self.error), LEFT_OVER * self.error)


def by_few(tensor: torch.Tensor) -> bool:
    """Whether a few elements carry the tensor's norm; such a tensor is like others by chance."""
    return spread(tensor.numpy()).few > 1 / math.sqrt(CARRIERS)


def norm(tensor: torch.Tensor) -> float:
    """Frobenius norm."""
    return array_norm(tensor.numpy())
