"""Activation recomputation: what the backward needs is computed once more instead of kept.

(Chen et al. 2016; attention alone, "selective", is Korthikanti et al. 2022, section 5.)  The same
arithmetic in the same order, so not a bit may differ from a run that keeps everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import cast

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pytest_trainsafe.reference_models.parallel.axes import Axes


def run_in_chunks(
    layers: Sequence[nn.Module], hidden: Tensor, *tables: Tensor, axes: Axes
) -> Tensor:
    """All layers; chunks of `recompute_num_layers` of them keep nothing but their first input."""
    size = axes.techniques.recompute_num_layers
    for first in range(0, len(layers), size):
        # Reentrant, as Megatron-LM's: the first time through, autograd is off.
        chunk = partial(_chunk, layers[first : first + size], axes)
        hidden = cast(Tensor, checkpoint(chunk, hidden, *tables, use_reentrant=True))
    return hidden


def _chunk(layers: Sequence[nn.Module], axes: Axes, entered: Tensor, *tables: Tensor) -> Tensor:
    hidden = entered
    for layer in layers:
        if axes.planted("recompute-chunk-input"):
            hidden = entered  # What goes in is the chunk's argument, not the layer before.
        hidden = layer(hidden, *tables)
    return hidden


def recompute_in_backward(module: nn.Module) -> None:
    """Let the module keep only its inputs, and compute once more in the backward.

    From outside it is the same module, called once.
    """
    forward = partial(checkpoint, module.forward, use_reentrant=True)
    module.forward = forward
