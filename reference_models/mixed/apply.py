"""Make a mixed model a parallel one: what the Llama and the mixture of experts have together."""

from __future__ import annotations

from fnmatch import fnmatchcase

from torch import nn

from pytest_trainsafe.reference_models.blocks.moe_layer import MoELayer
from pytest_trainsafe.reference_models.config import MixedConfig
from pytest_trainsafe.reference_models.mixed.network import Mixed
from pytest_trainsafe.reference_models.parallel.apply import apply_axes, check_sizes, layers_of
from pytest_trainsafe.reference_models.parallel.axes import Axes
from pytest_trainsafe.reference_models.parallel.experts.apply_moe import apply_to_experts
from pytest_trainsafe.reference_models.parallel.tensor.embedding import (
    SequenceParallelTokenEmbedding,
)

#: What can be frozen: patterns of parameters.
FROZEN = {
    "nothing": (),
    "embedding": ("embedding.*",),
    "norms": ("*layernorm*",),
    "attention": ("*self_attention*",),
}


def parallel_mixed(config: MixedConfig, axes: Axes, frozen: str) -> Mixed:
    """The model of `config` on this rank.  Sizes that cannot be cut evenly raise ValueError."""
    check_sizes(config, axes)
    model = Mixed(config)
    if axes.sp:
        model.embedding = SequenceParallelTokenEmbedding(config, axes)
    apply_axes(model, config, axes)
    for layer in layers_of(model):
        if isinstance(layer.mlp, MoELayer):
            apply_to_experts(layer.mlp, config, axes)
    if config.tied:
        model.output_layer.weight = model.embedding.word_embeddings.weight
    freeze(model, frozen)
    return model


def freeze(model: nn.Module, frozen: str) -> None:
    """Train all parameters but those named; an unknown name raises ValueError."""
    if frozen not in FROZEN:
        raise ValueError(f"frozen={frozen!r} is unknown; choose one of {', '.join(FROZEN)}")
    for name, parameter in model.named_parameters():
        if any(fnmatchcase(name, pattern) for pattern in FROZEN[frozen]):
            parameter.requires_grad_(False)
