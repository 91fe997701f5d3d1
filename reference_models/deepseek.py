"""The reference program of a DeepSeek-V3: latent attention, shared experts, one further token.

A test names it, `@pytest.mark.trainsafe(deepseek.train, tp=[1, 2])`, and it runs in the ranks.
Importing this module does not import torch, because pytest imports it to collect that test.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pytest_trainsafe.core.point import Point
from pytest_trainsafe.judges.metamorphic import relations
from pytest_trainsafe.reference_models.config import VOCABULARY, DeepSeekConfig
from pytest_trainsafe.reference_models.moe import experts_over_dp_and_cp
from pytest_trainsafe.reference_models.parallel.pipeline.schedules import OURS
from pytest_trainsafe.reference_models.rules import (
    layers_for_stages,
    microbatches_interleave,
    only_axes,
    sequence_in_chunks,
    sizes_of,
    vocabulary_over_tp,
)
from pytest_trainsafe.sweep.validity import divides, requires

if TYPE_CHECKING:
    from pytest_trainsafe.record.context import Context


def _own_schedule(point: Point, arguments: Mapping[str, object]) -> str | None:
    """Return why a schedule of torch.distributed.pipelining is impossible, or None."""
    schedule = str(arguments["schedule"])
    if point.size("pp") == 1 or schedule in OURS:
        return None
    return (
        f"schedule={schedule!r} first runs each stage on uninitialized tensors, and the routers "
        "would count the experts that they choose for them; use schedule='1f1b' or 'gpipe'"
    )


@relations.hold(relations.Split(), relations.Order(), relations.Recompute("full"))
@requires(
    divides("heads", "tp"),
    divides("ffn", "tp"),
    divides("expert_ffn", "tp"),
    divides("experts", "ep"),
    divides("microbatches", "dp"),
    vocabulary_over_tp,
    sequence_in_chunks,
    experts_over_dp_and_cp,
    layers_for_stages,
    microbatches_interleave,
    _own_schedule,
    only_axes("dp", "tp", "sp", "cp", "pp", "vpp", "ep", "zero", "recompute"),
    sizes_of(DeepSeekConfig),
)
def train(
    ctx: Context,
    layers: int = 2,
    hidden: int = 64,
    heads: int = 4,
    q_rank: int = 24,
    kv_rank: int = 16,
    rope_dim: int = 8,
    ffn: int = 96,
    dense_layers: int = 1,
    experts: int = 4,
    top_k: int = 2,
    expert_ffn: int = 32,
    shared: int = 1,
    route_scale: float = 2.5,
    bias_speed: float = 0.001,
    mtp_weight: float = 0.3,
    seq_len: int = 32,
    batch_size: int = 2,
    microbatches: int = 2,
    steps: int = 2,
    learning_rate: float = 1e-3,
    clip: float = 0.0,
    vocabulary: int = VOCABULARY,
    schedule: str = "1f1b",
    cp_method: str = "all_gather",
    tp_overlap: bool = False,
    recompute_num_layers: int = 1,
    bucket: int = 0,
    overlap_grad_reduce: bool = False,
    overlap_param_gather: bool = False,
    bug: str = "",
) -> None:
    """Train a DeepSeek-V3 for `steps` optimizer steps of `microbatches` micro-batches each.

    On one rank it trains the plain single-device model.  Axes: dp, tp, sp, cp, pp, vpp, ep (which
    must divide dp*cp), zero, recompute, microbatches and dtype.  `DeepSeekConfig` in `config.py`
    explains the sizes of the model, from `q_rank` to `mtp_weight`.  recompute="full" keeps the
    activations of the layer that predicts a further token.  `clip` is the maximum gradient norm; 0
    turns clipping off.  `vocabulary` is the number of tokens, at most 256.  `schedule` is "1f1b" or
    "gpipe".  `Techniques` in `parallel/techniques.py` explains `cp_method`, `tp_overlap`,
    `recompute_num_layers`, `bucket`, `overlap_grad_reduce` and `overlap_param_gather`.  `bug`
    plants one of `bugs.NAMES`.
    """
    from pytest_trainsafe.reference_models.parallel.deepseek.apply_deepseek import parallel_deepseek
    from pytest_trainsafe.reference_models.parallel.experts.expert_axes import axes_with_experts
    from pytest_trainsafe.reference_models.parallel.pipeline.tied import with_embedding_group
    from pytest_trainsafe.reference_models.parallel.techniques import (
        Techniques,
        microbatches_of,
    )
    from pytest_trainsafe.reference_models.training.annotations import activation_annotations
    from pytest_trainsafe.reference_models.training.language import Recipe, train_language_model

    config = DeepSeekConfig(
        layers,
        hidden,
        heads,
        seq_len,
        vocabulary,
        q_rank=q_rank,
        kv_rank=kv_rank,
        rope_dim=rope_dim,
        ffn=ffn,
        dense_layers=dense_layers,
        experts=experts,
        top_k=top_k,
        expert_ffn=expert_ffn,
        shared=shared,
        route_scale=route_scale,
        bias_speed=bias_speed,
        mtp_weight=mtp_weight,
    )
    techniques = Techniques(
        cp_method=cp_method,
        tp_overlap=tp_overlap,
        recompute_num_layers=recompute_num_layers,
        bucket=bucket,
        overlap_grad_reduce=overlap_grad_reduce,
        overlap_param_gather=overlap_param_gather,
    )
    axes = with_embedding_group(ctx, axes_with_experts(ctx, bug, techniques))
    total = microbatches_of(ctx, microbatches)
    recipe = Recipe(batch_size, seq_len, total, steps, learning_rate, clip, schedule, vocabulary)
    model = parallel_deepseek(config, axes)
    train_language_model(ctx, model, axes, recipe, activation_annotations("deepseek", config))
