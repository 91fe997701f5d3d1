"""Joins the parts of a tensor by a plan, if the parts are known to fit together.

A trace has thousands of tensors but few combinations of shapes and layouts, so one cached plan
serves many tensors.  Called by merge, which finds out whether parts fit together and reports where
they do not.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from pytest_trainsafe.align.replicas import BITS
from pytest_trainsafe.core.indices import Indices, placed_ranges
from pytest_trainsafe.core.rungs.arithmetic import Arithmetic

#: A strided view of a tensor: shape, strides, offset.
_View = tuple[tuple[int, ...], tuple[int, ...], int]


@dataclass(frozen=True, slots=True)
class Assembly:
    """How to join parts into a logical tensor of shape `whole`.

    `groups` lists the indices of parts that are replicas of each other; the first of each group
    is used.  `moves` holds, for each group, pairs of views: the target in the logical tensor and
    the source in the part.  `add` is true if the groups are added up, as terms of a sum.  The
    result is divided by each of `divisors`.  `whole_group` is true if there is one group, whose
    parts are the whole tensor.
    """

    whole: tuple[int, ...]
    groups: tuple[tuple[int, ...], ...]
    moves: tuple[tuple[tuple[_View, _View], ...], ...]
    add: bool
    divisors: tuple[int, ...]
    whole_group: bool

    @classmethod
    def of(
        cls,
        whole: tuple[int, ...],
        groups: Sequence[Sequence[int]],
        arrays: Sequence[Sequence[Indices]],
        *,
        add: bool = False,
        divisors: Sequence[int] = (),
    ) -> Assembly:
        """Builds an Assembly from the groups and the logical indices that each group holds."""
        one = len(groups) == 1 and tuple(map(len, arrays[0])) == whole
        moves = () if one else tuple(_moves(whole, each) for each in arrays)
        return cls(whole, tuple(map(tuple, groups)), moves, add, tuple(divisors), one)

    def assemble(
        self, tensors: Sequence[torch.Tensor], dtype: torch.dtype, numbers: Arithmetic
    ) -> torch.Tensor:
        """The logical tensor, in `dtype`, from the tensors of all parts; `numbers` adds them."""
        if self.whole_group:
            only = tensors[self.groups[0][0]].to(dtype)
            for divisor in self.divisors:
                only = numbers.divide(only, divisor)
            return only
        out = torch.zeros(self.whole, dtype=dtype)
        for group, moves in zip(self.groups, self.moves, strict=True):
            part = tensors[group[0]].contiguous()
            for there, here in moves:
                target, source = out.as_strided(*there), part.as_strided(*_placed(part, here))
                if self.add:
                    target.copy_(numbers.add(target, source.to(dtype)))
                else:
                    target.copy_(source)
        for divisor in self.divisors:
            out = numbers.divide(out, divisor)
        return out

    def replicas_equal(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether all replicas have the same bits; NaNs with different payloads are unequal."""
        return all(
            _same_bits(tensors[group[0]], tensors[other])
            for group in self.groups
            for other in group[1:]
        )


def _placed(part: torch.Tensor, view: _View) -> _View:
    shape, strides, offset = view
    return shape, strides, offset + int(part.storage_offset())


def _moves(whole: tuple[int, ...], arrays: Sequence[Indices]) -> tuple[tuple[_View, _View], ...]:
    local = tuple(map(len, arrays))
    there, here = _strides(whole), _strides(local)
    moves = []
    for block in itertools.product(*(placed_ranges(array) for array in arrays)):
        shape = tuple(length for *_, length in block)
        target = sum(run[0] * stride for run, stride in zip(block, there, strict=True))
        source = sum(run[1] * stride for run, stride in zip(block, here, strict=True))
        moves.append(((shape, there, target), (shape, here, source)))
    return tuple(moves)


def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a contiguous tensor."""
    strides, step = [], 1
    for length in reversed(shape):
        strides.append(step)
        step *= max(length, 1)
    return tuple(reversed(strides))


def _same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    if left is right:
        return True
    if left.is_complex():
        left, right = torch.view_as_real(left), torch.view_as_real(right)
    bits = BITS[left.element_size()]
    return torch.equal(left.contiguous().view(bits), right.contiguous().view(bits))
