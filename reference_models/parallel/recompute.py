"""Activation recomputation: the backward computes activations again instead of keeping them.

(Chen et al. 2016; "selective", which recomputes only attention: Korthikanti et al. 2022, section
5.)  The arithmetic and its order are the same, so the result must be bitwise equal to that of a run
that keeps everything.
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
    """Runs all layers; each chunk of `recompute_num_layers` layers keeps only its input."""
    size = axes.techniques.recompute_num_layers
    for first in range(0, len(layers), size):
        # Reentrant, as in Megatron-LM: autograd is off in the first forward.
        chunk = partial(_chunk, layers[first : first + size], axes)
        hidden = cast(Tensor, checkpoint(chunk, hidden, *tables, use_reentrant=True))
    return hidden


def _chunk(layers: Sequence[nn.Module], axes: Axes, entered: Tensor, *tables: Tensor) -> Tensor:
    hidden = entered
    for layer in layers:
        if axes.planted("recompute-chunk-input"):
            hidden = entered  # Each layer gets the chunk's input, not the previous layer's output.
        hidden = layer(hidden, *tables)
    return hidden


def recompute_in_backward(module: nn.Module) -> None:
    """Makes a module keep only its inputs and compute its forward again in the backward.

    Replaces `module.forward`, so callers keep the same module.  The backward calls only the former
    `forward` again, and not the module's own hooks.
    """
    forward = partial(checkpoint, module.forward, use_reentrant=True)
    module.forward = forward
