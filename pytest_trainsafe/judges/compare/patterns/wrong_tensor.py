"""A wrong tensor with the evidence on it.  Made by the judge, read by the patterns."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from pytest_trainsafe.align.merge import Part
from pytest_trainsafe.core.rungs.arithmetic import Arithmetic
from pytest_trainsafe.core.rungs.floating import FLOATING
from pytest_trainsafe.judges.compare.tensors.errors import Norms, spread

#: An explanation may leave this share of the error unexplained even if rounding allows less.
LEFT_OVER = 0.01

#: The same for a tensor of fewer than `FEW` elements.
LEFT_BY_FEW = 1e-6

#: Tensors of fewer elements than this easily match a pattern by chance.
FEW = 4

#: Tensors whose norm comes from fewer elements than this (by participation ratio) do so too.
CARRIERS = 2


@dataclass(frozen=True, slots=True)
class WrongTensor:
    """A wrong logical tensor and the evidence on it.

    `value` and `reference` are float64 or complex128, finite, and of one shape.  `parts` are the
    ranks' parts.  A wrong value may be scaled by the size of a mesh axis or by another number:
    `sizes` has the sizes of the mesh axes, and `factors` the other numbers, each with a name, such
    as the number of "micro-batches".  `only` is the axis that alone distinguishes the candidate
    from the reference, "" if there is none or more than one.  `allowed` is the absolute norm of the
    error that rounding explains, and `slices` this norm at every index of each dimension (empty if
    unknown).  `dtype` is the dtype in which the reference recorded the tensor.  `earlier` maps
    descriptions ("of the previous step") to the reference's earlier values, and `earlier_allowed`
    to the norms of the errors that rounding explains in these (`allowed` for values that it lacks).
    If the tensor is the sum of the gradients of micro-batches, `terms` maps each micro-batch to its
    gradient, and `left` has what a program that does not clear its gradients may still hold of the
    previous step, in the reference's values.
    If the tensor is an update, `parameters` has the reference's values before and after the step,
    and `updated` the candidate's value after it.
    `computed` maps each rank to the micro-batches that it computes in the tensor's step, and
    `summed` has the axes over which recorded collectives sum or average the tensor, by its name,
    and `again` the lines that sum it over an axis in one step, of axes for which there are several.
    `numbers` is the arithmetic of the rung.
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
    earlier_allowed: Mapping[str, float] = field(default_factory=dict)
    terms: Mapping[int, torch.Tensor] = field(default_factory=dict)
    left: tuple[torch.Tensor, ...] = ()
    parameters: tuple[torch.Tensor, ...] = ()
    updated: torch.Tensor | None = None
    only: str = ""
    computed: Mapping[int, frozenset[int]] = field(default_factory=dict)
    summed: frozenset[str] = frozenset()
    again: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    numbers: Arithmetic = FLOATING
    error: float = field(init=False)

    def __post_init__(self) -> None:
        assert self.value.shape == self.reference.shape
        object.__setattr__(self, "error", self.norm(self.difference))

    @property
    def difference(self) -> torch.Tensor:
        """The value minus the reference."""
        return self.minus(self.value, self.reference)

    def minus(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        """The difference of two tensors in the arithmetic of the rung."""
        return self.numbers.subtract(left, right)

    def norm(self, tensor: torch.Tensor) -> float:
        """How large a tensor is in the arithmetic of the rung."""
        return self.numbers.norm(tensor)

    def explains(
        self,
        value: torch.Tensor,
        target: torch.Tensor | None = None,
        allowed: float | None = None,
    ) -> bool:
        """Whether `value` equals the reference (or `target`) up to rounding or 1 % of the error.

        `allowed` is the norm of the error that rounding explains in `target`; None for that of the
        reference.
        """
        left = self.norm(self.minus(value, self.reference if target is None else target))
        return self.settles(left, allowed)

    def settles(self, left: float, allowed: float | None = None) -> bool:
        """Whether a remaining error of norm `left` is rounding, or at most 1 % of `error`.

        `allowed` is as for `explains`.  A few elements match up to 1 % by chance, so theirs may
        leave no more than rounding, or a millionth.
        """
        rounding = 3 * (self.allowed if allowed is None else allowed)
        share, kept = (0.05, LEFT_BY_FEW) if self.value.numel() < FEW else (0.25, LEFT_OVER)
        return self.within(left, max(min(rounding, share * self.error), kept * self.error))

    def within(self, left: float, limit: float) -> bool:
        """Whether a remaining error is at most `limit`; of exact numbers, whether it is zero."""
        return left == 0 if self.numbers.exact else left <= limit

    def is_by_few(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor is too small, or carried by too few elements, to prove a pattern.

        Exact numbers do not match by chance.
        """
        return not self.numbers.exact and by_few(tensor)

    def row_errors(self, dim: int) -> torch.Tensor:
        """The size of the difference at each index of a dimension."""
        rows = self.difference.movedim(dim, 0).reshape(self.value.shape[dim], -1)
        if self.numbers.exact:
            rows = (~self.numbers.is_zero(rows)).to(torch.float64)
        return rows.abs().square().sum(dim=1).sqrt()

    def common(self, tensor: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
        """What a tensor has at all positions along `dims`, which are kept with length 1.

        That is the mean, or of exact numbers, which are equal there or not, the first.
        """
        if not self.numbers.exact:
            return tensor.mean(dim=tuple(dims), keepdim=True)
        for dim in dims:
            tensor = tensor.narrow(dim, 0, 1)
        return tensor


def by_few(tensor: torch.Tensor) -> bool:
    """Whether most of the tensor's norm comes from a few elements.

    Such a tensor may match a pattern by chance.
    """
    return spread(tensor.numpy()).few > 1 / math.sqrt(CARRIERS)
