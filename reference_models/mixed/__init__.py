"""A reference program whose arguments choose its structure: norms, MLPs, experts, tied weights.

For fuzz tests: `@trainsafe_fuzz(mixed.train, tp=..., norm=["rms", "layer"], gated=..., ...)`.
Importing this module does not import torch, because pytest imports it to collect the tests that
name it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pytest_trainsafe.core.point import Point
from pytest_trainsafe.judges.metamorphic import relations
from pytest_trainsafe.judges.metamorphic.relations import Setting
from pytest_trainsafe.reference_models.config import MIXTURES, VOCABULARY, MixedConfig
from pytest_trainsafe.reference_models.moe import (
    balanced_over_micro_batches,
    experts_over_dp_and_cp,
)
from pytest_trainsafe.reference_models.rules import (
    only_axes,
    sequence_in_chunks,
    sizes_of,
    vocabulary_over_tp,
)
from pytest_trainsafe.sweep.validity import divides, requires

if TYPE_CHECKING:
    from pytest_trainsafe.record.context import Context


def has_experts(arguments: Mapping[str, object]) -> bool:
    """Whether any layer is a mixture of experts."""
    every = MIXTURES.get(str(arguments["mixtures"]), 0)
    return 0 < every <= int(str(arguments["layers"]))


def _experts_at_hand(point: Point, arguments: Mapping[str, object]) -> str | None:
    if int(point.get("ep", 1)) > 1 and not has_experts(arguments):
        return "ep > 1 divides experts over ranks, but this model has no experts"
    if arguments["bias"] and has_experts(arguments) and point.size("tp") > 1:
        return "experts that are divided over tp have no biases; use bias=False"
    return None


def _balanced(setting: Setting) -> str | None:
    return balanced_over_micro_batches(setting) if has_experts(setting.arguments) else None


@relations.hold(relations.Split(unless=_balanced), relations.Order())
@requires(
    only_axes("dp", "tp", "sp", "cp", "ep"),
    divides("heads", "tp"),
    divides("kv_heads", "tp"),
    divides("ffn", "tp"),
    divides("experts", "ep"),
    divides("microbatches", "dp"),
    vocabulary_over_tp,
    sequence_in_chunks,
    experts_over_dp_and_cp,
    _experts_at_hand,
    sizes_of(MixedConfig),
)
def train(
    ctx: Context,
    layers: int = 2,
    hidden: int = 16,
    heads: int = 4,
    kv_heads: int = 2,
    ffn: int = 16,
    norm: str = "rms",
    gated: bool = True,
    bias: bool = False,
    tied: bool = False,
    mixtures: str = "none",
    experts: int = 4,
    top_k: int = 2,
    capacity_factor: float = 0.0,
    balance: float = 0.01,
    frozen: str = "nothing",
    unused: bool = False,
    seq_len: int = 8,
    batch_size: int = 2,
    microbatches: int = 2,
    steps: int = 1,
    learning_rate: float = 1e-3,
    clip: float = 0.0,
    vocabulary: int = VOCABULARY,
    bug: str = "",
) -> None:
    """Train a small decoder for `steps` optimizer steps of `microbatches` micro-batches each.

    On one rank it trains the plain single-device model.  Axes: dp, tp, sp, cp, ep, microbatches
    and dtype.  `heads` heads of queries share `kv_heads` heads of keys and values.  `norm` is "rms"
    or "layer".  `gated` says whether MLPs are gated, and `bias` whether linear layers have biases.
    `tied` shares the weight of the embedding with the output layer.  `mixtures` says which layers
    are mixtures of `experts` experts: "all", every "second" one, or "none".  `frozen` says which
    parameters are not trained: "embedding", "norms", "attention" or "nothing".  `unused` adds a
    layer that is never called.  The other arguments are those of `moe.train`.
    """
    from pytest_trainsafe.reference_models.mixed.apply import parallel_mixed
    from pytest_trainsafe.reference_models.parallel.experts.expert_axes import axes_with_experts
    from pytest_trainsafe.reference_models.parallel.techniques import microbatches_of
    from pytest_trainsafe.reference_models.training.annotations import activation_annotations
    from pytest_trainsafe.reference_models.training.language import Recipe, train_language_model

    config = MixedConfig(
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
        gated=gated,
        bias=bias,
        norm=norm,
        mixtures=mixtures,
        tied=tied,
        unused=unused,
    )
    axes = axes_with_experts(ctx, bug)
    total = microbatches_of(ctx, microbatches)
    recipe = Recipe(batch_size, seq_len, total, steps, learning_rate, clip, vocabulary=vocabulary)
    model = parallel_mixed(config, axes, frozen)
    # The annotations of "moe" name modules that only a model with a mixture of experts has.
    mixed = has_experts({"layers": layers, "mixtures": mixtures})
    annotations = activation_annotations("moe" if mixed else "llama", config)
    train_language_model(ctx, model, axes, recipe, annotations)
