"""Makes the single-device mixture-of-experts model parallel; `apply.py` has the common steps."""

from __future__ import annotations

from pytest_trainsafe.reference_models.blocks.moe_layer import MoELayer
from pytest_trainsafe.reference_models.config import MoEConfig
from pytest_trainsafe.reference_models.networks.moe import MoE
from pytest_trainsafe.reference_models.parallel.apply import apply_axes, check_sizes, layers_of
from pytest_trainsafe.reference_models.parallel.axes import Axes
from pytest_trainsafe.reference_models.parallel.experts.experts import ParallelExperts
from pytest_trainsafe.reference_models.parallel.experts.routing import (
    ParallelBalance,
    ParallelCapacity,
    score_a_shard,
)
from pytest_trainsafe.reference_models.parallel.tensor.embedding import (
    SequenceParallelTokenEmbedding,
)


def parallel_moe(config: MoEConfig, axes: Axes) -> MoE:
    """The MoE of `config` on this rank.

    Raises ValueError for sizes that do not divide evenly, for pp, and for full recomputation.
    """
    check_sizes(config, axes)
    if config.experts % axes.ep.size:
        raise ValueError(f"experts={config.experts} must be a multiple of ep={axes.ep.size}")
    if axes.pp.size > 1 or axes.techniques.recompute == "full":
        raise ValueError(
            "this mixture-of-experts model does not support pp or recompute=full, which would "
            f"lose the layers' balancing loss, but it was given pp={axes.pp.size} and "
            f"recompute={axes.techniques.recompute}; use pp=1, and recompute=selective or none"
        )
    model = MoE(config)
    if axes.sp:
        model.embedding = SequenceParallelTokenEmbedding(config, axes)
    apply_axes(model, config, axes)
    for layer in layers_of(model):
        assert isinstance(layer.mlp, MoELayer)
        apply_to_experts(layer.mlp, config, axes)
    return model


def apply_to_experts(mlp: MoELayer, config: MoEConfig, axes: Axes) -> None:
    """Replaces those modules of one mixture-of-experts layer that the axes affect."""
    if axes.sp:
        score_a_shard(mlp.router, axes)
    if axes.sp or axes.cp.size > 1:
        mlp.balance = ParallelBalance(config, axes)
        mlp.capacity = ParallelCapacity(config, axes)
    if axes.tp.size > 1 or axes.ep.size > 1:
        mlp.experts = ParallelExperts(config, axes)
