"""Norms with sequence parallelism: each tp rank normalises its shard of the sequence.

(Korthikanti et al. 2022, section 4.2.2.)
"""

from __future__ import annotations

from torch import nn

from pytest_trainsafe.reference_models.blocks.norm import RMSNorm
from pytest_trainsafe.reference_models.parallel.axes import Axes
from pytest_trainsafe.reference_models.parallel.marks import mark_sequence_parallel


class SequenceParallelLayerNorm(nn.LayerNorm):
    """A LayerNorm with weights that all tp ranks hold, and gradients that are partial sums."""

    def __init__(self, hidden: int, axes: Axes) -> None:
        super().__init__(hidden)
        _mark(self, axes)


class SequenceParallelRMSNorm(RMSNorm):
    """An RMSNorm with weights that all tp ranks hold, and gradients that are partial sums."""

    def __init__(self, hidden: int, axes: Axes) -> None:
        super().__init__(hidden)
        _mark(self, axes)


def sequence_parallel(norm: nn.Module, hidden: int, axes: Axes) -> nn.Module:
    """The sequence-parallel norm that replaces a single-device one."""
    if isinstance(norm, RMSNorm):
        return SequenceParallelRMSNorm(hidden, axes)
    return SequenceParallelLayerNorm(hidden, axes)


def mark_norms(model: nn.Module) -> None:
    """Marks the parameters of every norm as ones whose gradients must be summed over tp."""
    for module in model.modules():
        if isinstance(module, (nn.LayerNorm, RMSNorm)):
            for parameter in module.parameters():
                mark_sequence_parallel(parameter)


def _mark(norm: nn.Module, axes: Axes) -> None:
    if axes.planted("sp-layernorm-grads"):
        return  # Without the mark, the gradients are not summed later.
    for parameter in norm.parameters():
        mark_sequence_parallel(parameter)
