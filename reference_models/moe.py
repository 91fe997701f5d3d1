"""The reference program of a mixture of experts: a Llama with several MLPs in every layer.

A test names it, `@pytest.mark.trainsafe(moe.train, dp=2, ep=[1, 2])`, and it runs in the ranks.
Importing this module does not import torch, because pytest imports it to collect that test.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pytest_trainsafe.core.point import Point
from pytest_trainsafe.judges.metamorphic import relations
from pytest_trainsafe.judges.metamorphic.relations import Setting
from pytest_trainsafe.reference_models.config import VOCABULARY, MoEConfig
from pytest_trainsafe.reference_models.rules import (
    only_axes,
    sequence_in_chunks,
    sizes_of,
    vocabulary_over_tp,
)
from pytest_trainsafe.sweep.validity import divides, requires

if TYPE_CHECKING:
    from pytest_trainsafe.record.context import Context


def experts_over_dp_and_cp(point: Point, _arguments: Mapping[str, object]) -> str | None:
    """Return why experts cannot be divided over the ranks of dp and cp, or None.

    The ranks of dp and cp are used because ranks with different experts must have different tokens.
    """
    ranks, ep = point.size("dp") * point.size("cp"), int(point.get("ep", 1))
    return f"ep={ep} does not divide dp*cp={ranks}" if ranks % ep else None


def _whole_layers_at_hand(point: Point, _arguments: Mapping[str, object]) -> str | None:
    """Return why the balancing loss would be lost, or None.

    A layer's balancing loss is not one of its outputs, so a pipeline stage does not pass it on,
    and it is lost if the layer is recomputed.
    """
    if point.get("recompute", "none") in (True, "full"):
        return "recompute=full would lose the balancing loss; use recompute=selective"
    if point.size("pp") > 1:
        return "pipeline stages would lose the balancing loss; this model has no pp"
    return None


def balanced_over_micro_batches(setting: Setting) -> str | None:
    """Return why a relation that changes the content of micro-batches does not hold, or None.

    The choices of experts are counted over a micro-batch, for the balancing loss and the capacity.
    """
    if setting.arguments["balance"] or setting.arguments["capacity_factor"]:
        return "the balancing loss and the capacity depend on the content of a micro-batch"
    return None


@relations.hold(
    relations.Split(unless=balanced_over_micro_batches),
    relations.Order(),
    relations.Recompute("selective"),
)
@requires(
    divides("heads", "tp"),
    divides("kv_heads", "tp"),
    divides("ffn", "tp"),
    divides("experts", "ep"),
    divides("microbatches", "dp"),
    vocabulary_over_tp,
    sequence_in_chunks,
    experts_over_dp_and_cp,
    _whole_layers_at_hand,
    only_axes("dp", "tp", "sp", "cp", "ep", "zero", "recompute"),
    sizes_of(MoEConfig),
)
def train(
    ctx: Context,
    layers: int = 2,
    hidden: int = 64,
    heads: int = 4,
    kv_heads: int = 2,
    ffn: int = 48,
    experts: int = 4,
    top_k: int = 2,
    capacity_factor: float = 0.0,
    balance: float = 0.01,
    seq_len: int = 32,
    batch_size: int = 2,
    microbatches: int = 2,
    steps: int = 2,
    learning_rate: float = 1e-3,
    clip: float = 0.0,
    vocabulary: int = VOCABULARY,
    bug: str = "",
) -> None:
    """Train a mixture of experts for `steps` optimizer steps of `microbatches` micro-batches each.

    On one rank it trains the plain single-device model.  Axes: dp, tp, sp, cp, ep (which must
    divide dp*cp), zero, recompute ("selective"), microbatches and dtype.  Each token goes to
    `top_k` of `experts` experts, which are MLPs of width `ffn`.  An expert takes at most
    `capacity_factor` times its even share of a micro-batch's choices; with 0 there is no limit.
    `balance` is the coefficient of the balancing loss, which is part of the loss.  Capacity and
    balancing loss are computed over all ranks of a micro-batch, so they are the same at every
    Point.  `clip` is the maximum gradient norm; 0 turns clipping off.  `vocabulary` is the number
    of tokens, at most 256.  `bug` plants one of `bugs.NAMES`.
    """
    from pytest_trainsafe.reference_models.parallel.experts.apply_moe import parallel_moe
    from pytest_trainsafe.reference_models.parallel.experts.expert_axes import axes_with_experts
    from pytest_trainsafe.reference_models.parallel.techniques import microbatches_of
    from pytest_trainsafe.reference_models.training.annotations import activation_annotations
    from pytest_trainsafe.reference_models.training.language import Recipe, train_language_model

    config = MoEConfig(
        layers,
        hidden,
        heads,
        seq_len,
        vocabulary,
        kv_heads=kv_heads,
        ffn=ffn,
        experts=experts,
        top_k=top_k,
        capacity_factor=capacity_factor,
        balance=balance,
    )
    axes = axes_with_experts(ctx, bug)
    total = microbatches_of(ctx, microbatches)
    recipe = Recipe(batch_size, seq_len, total, steps, learning_rate, clip, vocabulary=vocabulary)
    model = parallel_moe(config, axes)
    train_language_model(ctx, model, axes, recipe, activation_annotations("moe", config))
