"""Make a mixed model parallel, with the functions that do this for the Llama and for experts."""

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

#: Maps each value of `frozen` to the patterns of the parameters that it freezes.
FROZEN = {
    "nothing": (),
    "embedding": ("embedding.*",),
    "norms": ("*layernorm*",),
    "attention": ("*self_attention*",),
}


def parallel_mixed(config: MixedConfig, axes: Axes, frozen: str) -> Mixed:
    """Return the model of `config` on this rank, with some parameters frozen.

    Sizes that cannot be divided evenly raise ValueError, as does an unknown value of `frozen`.
    """
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
    """Freeze the parameters that `frozen`, a key of FROZEN, stands for.

    An unknown value raises ValueError.
    """
    if frozen not in FROZEN:
        raise ValueError(f"frozen={frozen!r} is unknown; choose one of {', '.join(FROZEN)}")
    for name, parameter in model.named_parameters():
        if any(fnmatchcase(name, pattern) for pattern in FROZEN[frozen]):
            parameter.requires_grad_(False)
