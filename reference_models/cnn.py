"""The reference program of a CNN: train a small one to tell shapes apart.

Importing this module does not import torch, because pytest imports it to collect the tests that
name it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pytest_trainsafe.core.point import Point
from pytest_trainsafe.judges.metamorphic import relations
from pytest_trainsafe.reference_models.rules import compiled_alone, only_data_parallel
from pytest_trainsafe.sweep.validity import divides, requires

if TYPE_CHECKING:
    from torch import Tensor

    from pytest_trainsafe.record.context import Context


def _normalised_in_groups(_point: Point, arguments: Mapping[str, object]) -> str | None:
    """Return why group normalisation is impossible with these sizes, or None."""
    channels, size = int(str(arguments["channels"])), int(str(arguments["size"]))
    if channels < 2 or channels % 2:
        return f"channels={channels} must be even and at least 2, because there are two groups"
    if size < 3 and channels == 2 and int(str(arguments["batch_size"])) == 1:
        return (
            f"size={size} with channels=2 and batch_size=1 leaves one value per group, which group "
            "normalisation cannot use; increase one of the three"
        )
    return None


@relations.hold(relations.Order())  # Split does not hold: data is drawn by micro-batch
@requires(
    divides("microbatches", "dp"),
    only_data_parallel("compile"),
    compiled_alone,
    _normalised_in_groups,
)
def train(
    ctx: Context,
    channels: int = 8,
    blocks: int = 2,
    size: int = 16,
    batch_size: int = 4,
    microbatches: int = 4,
    steps: int = 2,
    learning_rate: float = 1e-3,
    clip: float = 0.0,
    bucket: int = 0,
    overlap_grad_reduce: bool = False,
    overlap_param_gather: bool = False,
    compile_backend: str = "inductor",
    bug: str = "",
) -> None:
    """Train a CNN for `steps` optimizer steps of `microbatches` micro-batches each.

    On one rank it trains the plain single-device model.  Axes: dp, zero, compile, microbatches
    and dtype.  `channels` must be even; pictures have `size` by `size` pixels.  `clip` is the
    maximum gradient norm; 0 turns clipping off.  `Techniques` in
    `parallel/techniques.py` explains `bucket`, `overlap_grad_reduce`, `overlap_param_gather` and
    `compile_backend`.  `bug` plants one of `bugs.NAMES` that concerns dp or zero.
    """
    from pytest_trainsafe.reference_models.datasets import images
    from pytest_trainsafe.reference_models.networks.cnn import CNN
    from pytest_trainsafe.reference_models.parallel.axes import Axes
    from pytest_trainsafe.reference_models.parallel.techniques import (
        Techniques,
        microbatches_of,
    )
    from pytest_trainsafe.reference_models.training.supervised import Plan, train_supervised

    techniques = Techniques(
        bucket=bucket,
        overlap_grad_reduce=overlap_grad_reduce,
        overlap_param_gather=overlap_param_gather,
        compile_backend=compile_backend,
    )
    total = microbatches_of(ctx, microbatches)
    plan = Plan(batch_size, total, steps, learning_rate, clip)

    def batch(number: int) -> tuple[Tensor, Tensor]:
        pictures, kinds = images.batch(number, batch_size, size, ctx.seed)
        return pictures.to(ctx.dtype), kinds

    model = CNN(channels, blocks, len(images.KINDS))
    train_supervised(ctx, model, Axes.of(ctx, bug, techniques), plan, batch)
