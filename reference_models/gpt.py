"""The reference program of a GPT: train a small one, on one device or in parallel.

A test names it, `@pytest.mark.trainsafe(gpt.train, tp=[1, 2])`, and it runs inside the ranks.
Importing this module does not import torch, because pytest imports it to collect that test.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_trainsafe.judges.metamorphic import relations
from pytest_trainsafe.reference_models.config import VOCABULARY, GPTConfig
from pytest_trainsafe.reference_models.rules import (
    compiled_alone,
    fp8_scales_follow_micro_batches,
    layers_for_stages,
    microbatches_interleave,
    only_axes,
    sequence_in_chunks,
    sizes_of,
    torch_schedules_fit,
    vocabulary_over_tp,
)
from pytest_trainsafe.sweep.validity import divides, requires

if TYPE_CHECKING:
    from pytest_trainsafe.record.context import Context


@relations.hold(
    relations.Split(unless=fp8_scales_follow_micro_batches),
    relations.Order(),
    relations.Recompute("full"),
)
@requires(
    only_axes("dp", "tp", "sp", "cp", "pp", "vpp", "zero", "recompute", "compile"),
    divides("heads", "tp"),
    divides("microbatches", "dp"),
    vocabulary_over_tp,
    sequence_in_chunks,
    layers_for_stages,
    microbatches_interleave,
    torch_schedules_fit,
    compiled_alone,
    sizes_of(GPTConfig),
)
def train(
    ctx: Context,
    layers: int = 2,
    hidden: int = 64,
    heads: int = 4,
    seq_len: int = 32,
    batch_size: int = 2,
    microbatches: int = 2,
    steps: int = 2,
    learning_rate: float = 1e-3,
    clip: float = 0.0,
    vocabulary: int = VOCABULARY,
    tied: bool = False,
    schedule: str = "1f1b",
    cp_method: str = "all_gather",
    tp_overlap: bool = False,
    recompute_num_layers: int = 1,
    fp8: bool = False,
    bucket: int = 0,
    overlap_grad_reduce: bool = False,
    overlap_param_gather: bool = False,
    compile_backend: str = "inductor",
    bug: str = "",
) -> None:
    """Train a GPT for `steps` optimizer steps of `microbatches` micro-batches each.

    On one rank it trains the plain single-device model.  Axes: dp, tp, sp, cp, pp, vpp, zero,
    recompute, compile, microbatches and dtype.  `clip` is the maximum gradient norm; 0 turns
    clipping off.  `vocabulary` is the number of tokens, at most 256.  `tied` shares the weight of
    the embedding with the output layer.  `schedule` is a pipeline schedule of
    `parallel/pipeline/schedules.py`.  `Techniques` in `parallel/techniques.py` explains
    `cp_method`, `tp_overlap`, `recompute_num_layers`, `fp8`, `bucket`, `overlap_grad_reduce`,
    `overlap_param_gather` and `compile_backend`.  `bug` plants one of `bugs.NAMES`.
    """
    from pytest_trainsafe.reference_models.parallel.apply import parallel_gpt
    from pytest_trainsafe.reference_models.parallel.axes import Axes
    from pytest_trainsafe.reference_models.parallel.pipeline.tied import with_embedding_group
    from pytest_trainsafe.reference_models.parallel.techniques import (
        Techniques,
        microbatches_of,
    )
    from pytest_trainsafe.reference_models.training.annotations import activation_annotations
    from pytest_trainsafe.reference_models.training.language import Recipe, train_language_model

    config = GPTConfig(layers, hidden, heads, seq_len, vocabulary, tied=tied)
    techniques = Techniques(
        cp_method=cp_method,
        tp_overlap=tp_overlap,
        recompute_num_layers=recompute_num_layers,
        fp8=fp8,
        bucket=bucket,
        overlap_grad_reduce=overlap_grad_reduce,
        overlap_param_gather=overlap_param_gather,
        compile_backend=compile_backend,
    )
    axes = Axes.of(ctx, bug, techniques)
    if tied:
        axes = with_embedding_group(ctx, axes)
    total = microbatches_of(ctx, microbatches)
    recipe = Recipe(batch_size, seq_len, total, steps, learning_rate, clip, schedule, vocabulary)
    model = parallel_gpt(config, axes)
    train_language_model(ctx, model, axes, recipe, activation_annotations("gpt", config))
