"""What a localisation agrees on with its ranks: the keys, values and notes of rewritten tensors.

The judge asks for the values under these keys (`RunSpec.rewrite`), and `instrument/` puts them into
the program.  Both sides compute the values: they depend only on the key, the seed and the layout.
"""

from __future__ import annotations

import torch

from pytest_trainsafe.core.layout import Coordinates, Layout, Sizes
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.record.model.consistent import consistent_tensor
from pytest_trainsafe.trace.run_spec import Rewrite

#: The layout source that is recorded for an input whose layout is not known.
UNKNOWN = "unknown"


def rewrite_key(where: TensorId) -> str:
    """The key of a tensor in `spec.rewrite`: the same for all steps and micro-batches."""
    return f"{where.kind} {where.path} {where.call}"


def own_rewrite_key(where: TensorId) -> str:
    """The key in `spec.rewrite` of a tensor whose shape is unlike that in other micro-batches."""
    return f"{rewrite_key(where)} in step {where.step}, micro-batch {where.microbatch}"


def replacement(
    where: TensorId,
    target: Rewrite,
    seed: int,
    like: torch.Tensor,
    layout: Layout = (),
    coordinates: Coordinates | None = None,
    sizes: Sizes | None = None,
) -> torch.Tensor:
    """This rank's part of the values that replace tensor `where`, with the dtype of `like`.

    Without a layout, the result is the whole logical tensor.
    """
    values = consistent_tensor(
        f"rewritten {where}",
        target.shape,
        mean=target.mean,
        std=target.std,
        dtype=like.dtype,
        device=like.device,
        seed=seed,
        layout=layout,
        coordinates=coordinates,
        sizes=sizes,
    )
    if target.low is not None and target.high is not None:
        values = values.clamp(target.low, target.high)
    return values


def noted(step: int, path: str) -> str:
    """The text by which a trace notes what became of the main gradient of a parameter `path`."""
    return f"step {step}, {path}"
