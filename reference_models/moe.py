"""The reference program of a mixture of experts: a Llama with several MLPs in every layer.

A test names it, `@pytest.mark.trainsafe(moe.train, dp=2, ep=[1, 2])`, and it runs in the ranks.
Importing this module imports no torch, for pytest imports it to collect that test.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pytest_trainsafe.core.point import Point
from pytest_trainsafe.reference_models.config import VOCABULARY, MoEConfig
from pytest_trainsafe.reference_models.rules import (
    sequence_in_chunks,
    sizes_of,
    vocabulary_over_tp,
)
from pytest_trainsafe.sweep import relations
from pytest_trainsafe.sweep.relations import Setting
from pytest_trainsafe.sweep.validity import divides, requires

if TYPE_CHECKING:
    from pytest_trainsafe.record.context import Context


def experts_over_dp_and_cp(point: Point, _arguments: Mapping[str, object]) -> str | None:
    """Ranks that share experts out see different tokens: those of dp and cp do."""
    ranks, ep = point.size("dp") * point.size("cp"), int(point.get("ep", 1))
    return f"ep={ep} does not divide dp*cp={ranks}" if ranks % ep else None


def _whole_layers_at_hand(point: Point, _arguments: Mapping[str, object]) -> str | None:
    """A layer's balancing loss is no output of the layer: stages do not hand it on, and
    recomputing a layer loses it.
    """
    if point.get("recompute", "none") in (True, "full"):
        return "recompute=full would lose the balancing loss; selective recomputes attention"
    if point.size("pp") > 1:
        return "pipeline stages would lose the balancing loss; this model has no pp"
    return None


def balanced_over_micro_batches(setting: Setting) -> str | None:
    """Which experts are full or chosen too often is counted over a micro-batch."""
    if setting.arguments["balance"] or setting.arguments["capacity_factor"]:
        return "the balancing loss and the capacity are those of a micro-batch, whatever its size"
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

    On one rank it is the single-device model, unchanged.  Axes: dp, tp, sp, cp, ep (it divides
    dp*cp), zero, recompute ("selective"), microbatches and dtype.  Each token visits `top_k` of
    `experts` experts of width `ffn`; an expert takes `capacity_factor` times its even share of a
    micro-batch, 0 drops nothing.  `balance` is the coefficient of the balancing loss, which is
    part of the loss.  Capacity and balance are those of one micro-batch over all its ranks, so
    they mean the same at every Point.
    `clip` is the largest gradient norm let through (0 lets all through).  There are `vocabulary`
    tokens, at most 256.  `bug` plants one of
    `bugs.NAMES`.
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
