"""Make the single-device GPT a parallel one, by swapping the modules that an axis concerns.

What no axis concerns stays as it is, so names align, and on one rank nothing is swapped at all.
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_trainsafe.reference_models.config import GPTConfig
from pytest_trainsafe.reference_models.decoder import TransformerLayer
from pytest_trainsafe.reference_models.model import GPT
from pytest_trainsafe.reference_models.parallel.attention import ContextParallelAttention
from pytest_trainsafe.reference_models.parallel.axes import Axes
from pytest_trainsafe.reference_models.parallel.embedding import (
    SequenceParallelEmbedding,
    VocabParallelEmbedding,
)
from pytest_trainsafe.reference_models.parallel.linear import (
    ColumnParallelLinear,
    RowParallelLinear,
)
from pytest_trainsafe.reference_models.parallel.loss import VocabParallelCrossEntropy
from pytest_trainsafe.reference_models.parallel.norm import SequenceParallelLayerNorm


def parallel_gpt(config: GPTConfig, axes: Axes) -> GPT:
    """The GPT of `config` on this rank.  Sizes that cannot be cut evenly raise ValueError."""
    _check_sizes(config, axes)
    model = GPT(config)
    if axes.sp:
        _apply_sequence_parallel(model, config, axes)
    if axes.tp.size > 1:
        _apply_tensor_parallel(model, config, axes)
    if axes.cp.size > 1:
        _apply_context_parallel(model, config, axes)
    return model


def _apply_sequence_parallel(model: GPT, config: GPTConfig, axes: Axes) -> None:
    model.embedding = SequenceParallelEmbedding(config, axes)
    for layer in _layers(model):
        layer.input_layernorm = SequenceParallelLayerNorm(config.hidden, axes)
        layer.pre_mlp_layernorm = SequenceParallelLayerNorm(config.hidden, axes)
    model.decoder.final_layernorm = SequenceParallelLayerNorm(config.hidden, axes)


def _apply_tensor_parallel(model: GPT, config: GPTConfig, axes: Axes) -> None:
    width = config.hidden
    model.embedding.word_embeddings = VocabParallelEmbedding(config, axes)
    for layer in _layers(model):
        attention, mlp = layer.self_attention, layer.mlp
        attention.linear_qkv = ColumnParallelLinear(width, 3 * width, axes, blocks=(width,) * 3)
        attention.linear_proj = RowParallelLinear(width, width, axes)
        mlp.linear_fc1 = ColumnParallelLinear(width, 4 * width, axes)
        mlp.linear_fc2 = RowParallelLinear(4 * width, width, axes)
    model.output_layer = ColumnParallelLinear(width, config.vocabulary, axes, bias=False)
    model.cross_entropy = VocabParallelCrossEntropy(axes)


def _apply_context_parallel(model: GPT, config: GPTConfig, axes: Axes) -> None:
    for layer in _layers(model):
        layer.self_attention.core_attention = ContextParallelAttention(config.head_dim, axes)


def _layers(model: GPT) -> Iterator[TransformerLayer]:
    for layer in model.decoder.layers:
        assert isinstance(layer, TransformerLayer)
        yield layer


def _check_sizes(config: GPTConfig, axes: Axes) -> None:
    """The rules that `gpt.train` also declares, for whoever calls without them."""
    tp, cp = axes.tp.size, axes.cp.size
    for name, value, divisor, why in (
        ("heads", config.heads, tp, "tp: a rank computes whole heads"),
        ("vocabulary", config.vocabulary, tp, "tp: the embedding is cut over the vocabulary"),
        ("seq_len", config.seq_len, 2 * cp, "2 * cp: a rank holds two chunks of the sequence"),
        ("seq_len / cp", config.seq_len // cp, tp if axes.sp else 1, "tp: sp cuts the sequence"),
    ):
        if value % divisor:
            raise ValueError(f"{name}={value} must be a multiple of {divisor}, which is {why}")
