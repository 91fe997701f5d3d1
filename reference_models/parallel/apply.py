"""Makes a single-device model parallel, by replacing the modules that an axis affects.

All other modules stay as they are, so the names of modules and parameters do not change.  On one
rank nothing is replaced, except that FP8 and recomputation change forwards there too.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from pytest_trainsafe.reference_models.blocks.attention import CoreAttention, SelfAttention
from pytest_trainsafe.reference_models.blocks.mlp import MLP
from pytest_trainsafe.reference_models.config import (
    AnyConfig,
    GPTConfig,
    LlamaConfig,
    fc1_blocks,
    qkv_blocks,
)
from pytest_trainsafe.reference_models.networks.decoder import TransformerLayer
from pytest_trainsafe.reference_models.networks.deepseek import DeepSeek, Transformer
from pytest_trainsafe.reference_models.networks.gpt import GPT, tie
from pytest_trainsafe.reference_models.networks.llama import Llama
from pytest_trainsafe.reference_models.parallel.axes import Axes
from pytest_trainsafe.reference_models.parallel.context.attention import ContextParallelAttention
from pytest_trainsafe.reference_models.parallel.context.ring import RingAttention
from pytest_trainsafe.reference_models.parallel.fp8 import use_fp8
from pytest_trainsafe.reference_models.parallel.recompute import (
    recompute_in_backward,
    run_in_chunks,
)
from pytest_trainsafe.reference_models.parallel.tensor.embedding import (
    SequenceParallelEmbedding,
    SequenceParallelTokenEmbedding,
    VocabParallelEmbedding,
)
from pytest_trainsafe.reference_models.parallel.tensor.linear import (
    ColumnParallelLinear,
    RowParallelLinear,
)
from pytest_trainsafe.reference_models.parallel.tensor.loss import VocabParallelCrossEntropy
from pytest_trainsafe.reference_models.parallel.tensor.norm import mark_norms, sequence_parallel
from pytest_trainsafe.reference_models.plain import fp8 as plain_fp8


def parallel_gpt(config: GPTConfig, axes: Axes) -> GPT:
    """The GPT of `config` on this rank.

    Raises ValueError for sizes that do not divide evenly.
    """
    check_sizes(config, axes)
    model = GPT(config)
    if axes.sp:
        model.embedding = SequenceParallelEmbedding(config, axes)
    apply_axes(model, config, axes)
    if config.tied:
        tie(model)
    return model


def parallel_llama(config: LlamaConfig, axes: Axes) -> Llama:
    """The Llama of `config` on this rank.

    Raises ValueError for sizes that do not divide evenly.
    """
    check_sizes(config, axes)
    model = Llama(config)
    if axes.sp:
        model.embedding = SequenceParallelTokenEmbedding(config, axes)
    apply_axes(model, config, axes)
    return model


def apply_axes(model: Transformer, config: AnyConfig, axes: Axes) -> None:
    """Replaces the modules that all models have: norms, projections, attention, the loss."""
    if axes.sp:
        _apply_sequence_parallel(model, config, axes)
    if axes.tp.size > 1:
        _apply_tensor_parallel(model, config, axes)
    if axes.cp.size > 1:
        _apply_context_parallel(model, config, axes)
    if axes.techniques.fp8:
        _apply_fp8(model, axes)
    _apply_recomputation(model, axes)


def _apply_sequence_parallel(model: Transformer, config: AnyConfig, axes: Axes) -> None:
    decoder, width = model.decoder, config.hidden
    for layer in layers_of(model):
        layer.input_layernorm = sequence_parallel(layer.input_layernorm, width, axes)
        layer.pre_mlp_layernorm = sequence_parallel(layer.pre_mlp_layernorm, width, axes)
    decoder.final_layernorm = sequence_parallel(decoder.final_layernorm, width, axes)


def _apply_tensor_parallel(model: Transformer, config: AnyConfig, axes: Axes) -> None:
    width, bias = config.hidden, config.bias
    model.embedding.word_embeddings = VocabParallelEmbedding(config, axes)
    for layer in layers_of(model):
        attention, mlp = layer.self_attention, layer.mlp
        if isinstance(attention, SelfAttention):
            qkv = qkv_blocks(config)
            linear = ColumnParallelLinear(width, sum(qkv), axes, bias=bias, blocks=qkv)
            attention.linear_qkv = linear
            attention.linear_proj = RowParallelLinear(width, width, axes, bias=bias)
        if isinstance(mlp, MLP):
            cut_mlp(mlp, config, axes)
    model.output_layer = ColumnParallelLinear(width, config.vocabulary, axes, bias=False)
    model.cross_entropy = VocabParallelCrossEntropy(axes)


def cut_mlp(mlp: MLP, config: AnyConfig, axes: Axes, ffn: int | None = None) -> None:
    """Splits an MLP over tp; its width is `ffn`, or that of the configuration."""
    width, bias, fc1 = config.hidden, config.bias, fc1_blocks(config, ffn)
    blocks = fc1 if config.gated else ()
    mlp.linear_fc1 = ColumnParallelLinear(width, sum(fc1), axes, bias=bias, blocks=blocks)
    mlp.linear_fc2 = RowParallelLinear(fc1[0], width, axes, bias=bias)


def _apply_context_parallel(model: Transformer, config: AnyConfig, axes: Axes) -> None:
    ring = axes.techniques.cp_method == "ring"
    attention = RingAttention if ring else ContextParallelAttention
    for layer in layers_of(model):
        core = layer.self_attention.core_attention
        assert isinstance(core, CoreAttention)
        layer.self_attention.core_attention = attention(core.head_dim, axes)
    if axes.planted("cp-layernorm-grads"):
        # Because the sequence is split, a rank's gradient is a partial sum; but over cp, not tp.
        mark_norms(model)


def _apply_fp8(model: Transformer, axes: Axes) -> None:
    """Makes all linear layers compute in FP8, except the output layer and those of experts."""
    for layer in layers_of(model):
        attention, mlp = layer.self_attention, layer.mlp
        assert isinstance(attention, SelfAttention)
        linears = [attention.linear_qkv, attention.linear_proj]
        if isinstance(mlp, MLP):
            linears += [mlp.linear_fc1, mlp.linear_fc2]
        for linear in linears:
            if axes.alone:
                plain_fp8.use_fp8(linear)
            else:
                use_fp8(linear, axes)


def _apply_recomputation(model: Transformer, axes: Axes) -> None:
    if axes.techniques.recompute == "full":
        model.decoder.run_layers = partial(run_in_chunks, axes=axes)
    elif axes.techniques.recompute == "selective":
        for layer in layers_of(model):
            recompute_in_backward(layer.self_attention.core_attention)


def layers_of(model: Transformer) -> Iterator[TransformerLayer]:
    """The layers of a model's decoder, and the one that predicts a further token."""
    further = [model.mtp.transformer_layer] if isinstance(model, DeepSeek) else []
    for layer in [*model.decoder.layers, *further]:
        assert isinstance(layer, TransformerLayer)
        yield layer


def check_sizes(config: AnyConfig, axes: Axes) -> None:
    """Raises ValueError for sizes that the axes cannot split evenly.

    The programs declare the same rules; this check is for callers that do not use the programs.
    """
    tp, cp = axes.tp.size, axes.cp.size
    heads = "tp, because a rank computes whole heads"
    for name, value, divisor, why in (
        ("heads", config.heads, tp, heads),
        ("kv_heads", config.kv_heads, tp, heads),
        ("ffn", config.ffn, tp, "tp, because the MLP is split over its width"),
        ("vocabulary", config.vocabulary, tp, "tp, because ranks share the vocabulary"),
        (
            "seq_len",
            config.seq_len,
            2 * cp if cp > 1 else 1,
            "2 * cp, because a rank holds two chunks of the sequence",
        ),
        (
            "seq_len / cp",
            config.seq_len // cp,
            tp if axes.sp else 1,
            "tp, because sp splits the sequence",
        ),
    ):
        if value % divisor:
            raise ValueError(f"{name}={value} must be a multiple of {divisor}, which is {why}")
