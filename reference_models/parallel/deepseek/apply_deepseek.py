"""Makes the single-device DeepSeek parallel; `parallel/apply.py` has the common steps."""

from __future__ import annotations

from pytest_trainsafe.reference_models.blocks.deepseek_moe import DeepSeekMoE
from pytest_trainsafe.reference_models.config import DeepSeekConfig
from pytest_trainsafe.reference_models.networks.deepseek import DeepSeek
from pytest_trainsafe.reference_models.parallel.apply import apply_axes, check_sizes, layers_of
from pytest_trainsafe.reference_models.parallel.axes import Axes
from pytest_trainsafe.reference_models.parallel.deepseek.latent import ParallelLatentAttention
from pytest_trainsafe.reference_models.parallel.deepseek.mixture import apply_to_mixture
from pytest_trainsafe.reference_models.parallel.deepseek.prediction import ParallelPrediction
from pytest_trainsafe.reference_models.parallel.tensor.embedding import (
    SequenceParallelTokenEmbedding,
)


def parallel_deepseek(config: DeepSeekConfig, axes: Axes) -> DeepSeek:
    """The DeepSeek of `config` on this rank.

    Raises ValueError for sizes that do not divide evenly.
    """
    check_sizes(config, axes)
    for name, value, axis, divisor in (
        ("expert_ffn", config.expert_ffn, "tp", axes.tp.size),
        ("experts", config.experts, "ep", axes.ep.size),
    ):
        if value % divisor:
            raise ValueError(f"{name}={value} must be a multiple of {axis}={divisor}")
    model = DeepSeek(config)
    if axes.sp:
        model.embedding = SequenceParallelTokenEmbedding(config, axes)
    if axes.tp.size > 1:
        for layer in layers_of(model):
            layer.self_attention = ParallelLatentAttention(config, axes)
    if axes.tp.size > 1 or axes.cp.size > 1:
        model.mtp = ParallelPrediction(config, model.mtp.transformer_layer, axes)
    apply_axes(model, config, axes)
    for layer in layers_of(model):
        if isinstance(layer.mlp, DeepSeekMoE):
            apply_to_mixture(layer.mlp, config, axes)
    model.mtp.share(model.embedding.word_embeddings, model.output_layer)
    return model
