"""A reference program with sequences of unequal length, for faults that every Run shares.

`bugs/shared.py` lists the faults.  The program's loss is the mean over all tokens of a step.  It
does not depend on how these tokens are divided into micro-batches and over ranks.  All metamorphic
relations apply to the program.  Importing this module does not import torch, because pytest imports
it to collect the tests that name it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_trainsafe.judges.metamorphic import relations
from pytest_trainsafe.reference_models.bugs import shared
from pytest_trainsafe.reference_models.rules import fp8_scales_follow_micro_batches, only_axes
from pytest_trainsafe.sweep.validity import divides, requires

if TYPE_CHECKING:
    from pytest_trainsafe.record.context import Context


@relations.hold(
    relations.Split(loss="sum", unless=fp8_scales_follow_micro_batches),
    relations.Order(),
    relations.Recompute(),
    relations.Padding(unless=fp8_scales_follow_micro_batches),
    relations.Vocabulary(),
    relations.LossScale(),
    relations.Repeat(),
)
@requires(only_axes("dp", "recompute"), divides("microbatches", "dp"), divides("hidden", "heads"))
def train(
    ctx: Context,
    layers: int = 1,
    hidden: int = 16,
    heads: int = 2,
    seq_len: int = 8,
    batch_size: int = 2,
    microbatches: int = 2,
    steps: int = 2,
    learning_rate: float = 1e-3,
    clip: float = 0.1,
    vocabulary: int = 32,
    z_loss: float = 0.1,
    dropout: float = 0.1,
    fp8: bool = False,
    padding: int = 0,
    unused_ids: int = 0,
    loss_scale: float = 1.0,
    repeats: int = 1,
    fault: str = "",
) -> None:
    """Train a small transformer for `steps` optimizer steps of `microbatches` micro-batches each.

    Axes: dp, recompute, microbatches and dtype.  Sequences have up to `seq_len` tokens, and
    `padding` further entries.  `unused_ids` is added to the size of the vocabulary.  `repeats` is
    how often a micro-batch contains each sample.  The loss is multiplied by `loss_scale`, and the
    gradients are divided by it before they are clipped to the norm `clip`.  `z_loss` is the
    coefficient of the z-loss, the mean over tokens of the squared normaliser of the softmax.  With
    `fp8` the MLP computes in FP8.  `fault` plants one of `bugs.shared.NAMES`.
    """
    from pytest_trainsafe.reference_models.masked.training import Recipe, train_masked

    if fault:
        shared.find(fault)
    recipe = Recipe(
        layers=layers,
        hidden=hidden,
        heads=heads,
        seq_len=seq_len,
        batch_size=batch_size,
        microbatches=int(ctx.point.get("microbatches", microbatches)),
        steps=steps,
        learning_rate=learning_rate,
        clip=clip,
        vocabulary=vocabulary,
        z_loss=z_loss,
        dropout=dropout,
        fp8=fp8,
        padding=padding,
        unused_ids=unused_ids,
        loss_scale=loss_scale,
        repeats=repeats,
        recompute=ctx.point.get("recompute", "none") in (True, "full"),
        fault=fault,
    )
    train_masked(ctx, recipe)
