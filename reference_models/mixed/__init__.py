"""A reference program whose structure is drawn: attention, norms, MLPs, experts, tied weights.

For fuzz tests: `@trainsafe_fuzz(mixed.train, tp=..., norm=["rms", "layer"], gated=..., ...)`.
Importing this module imports no torch, for pytest imports it to collect the tests that name it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pytest_trainsafe.core.point import AxisValue, Point
from pytest_trainsafe.reference_models.config import MIXTURES, VOCABULARY, MixedConfig
from pytest_trainsafe.reference_models.moe import (
    balanced_over_micro_batches,
    experts_over_dp_and_cp,
)
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

#: Axes that this program does not have, each with its value that changes nothing.
ABSENT: dict[str, tuple[AxisValue, ...]] = {
    **dict.fromkeys(("pp", "vpp"), (1,)),
    "zero": (0,),
    "compile": (False,),
    "recompute": (False, "none"),
}


def has_experts(arguments: Mapping[str, object]) -> bool:
    """Whether any layer is a mixture of experts."""
    every = MIXTURES.get(str(arguments["mixtures"]), 0)
    return 0 < every <= int(str(arguments["layers"]))


def _axes_of_the_blocks(point: Point, arguments: Mapping[str, object]) -> str | None:
    for axis, off in ABSENT.items():
        if point.get(axis, off[0]) not in off:
            return f"this program has no {axis}; its axes are dp, tp, sp, cp and ep"
    if int(point.get("ep", 1)) > 1 and not has_experts(arguments):
        return "ep shares experts out, and this model has none"
    if arguments["bias"] and has_experts(arguments) and point.size("tp") > 1:
        return "experts that are cut over tp have no biases; this needs bias=False"
    return None


def _balanced(setting: Setting) -> str | None:
    return balanced_over_micro_batches(setting) if has_experts(setting.arguments) else None


@relations.hold(relations.Split(unless=_balanced), relations.Order())
@requires(
    divides("heads", "tp"),
    divides("kv_heads", "tp"),
    divides("ffn", "tp"),
    divides("experts", "ep"),
    divides("microbatches", "dp"),
    vocabulary_over_tp,
    sequence_in_chunks,
    experts_over_dp_and_cp,
    _axes_of_the_blocks,
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

    On one rank it is the single-device model, unchanged.  Axes: dp, tp, sp, cp, ep, microbatches
    and dtype.  `kv_heads` of `heads` heads of queries share keys and values.  `norm` is "rms" or
    "layer", and an MLP is `gated` or not, with `bias` or without.  `mixtures` says which layers are
    mixtures of `experts`: "all", each "second" one, or "none".  `frozen` parameters are not trained
    ("embedding", "norms" or "attention"; "nothing"), and with `unused` there is a layer that is
    never called.  The other arguments are those of `moe.train`.
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
    # Only a model with a mixture of experts has the modules that the annotations of one name.
    mixed = has_experts({"layers": layers, "mixtures": mixtures})
    annotations = activation_annotations("moe" if mixed else "llama", config)
    train_language_model(ctx, model, axes, recipe, annotations)
