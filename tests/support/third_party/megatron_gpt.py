"""megatron-core's GPT, trained by a hand-written loop over megatron-core's own schedules."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from pytest_trainsafe.record.context import Context
from tests.support.third_party import megatron_cpu

VOCABULARY, LENGTH, SAMPLES, MICROBATCHES = 64, 8, 2, 4

ANNOTATIONS: dict[str, Any] = {
    # megatron-core divides each rank's loss by its own number of micro-batches; its
    # DistributedDataParallel then averages over dp.
    "gradients": {"mean": ["dp"]},
    "modules": {
        "layers.[0-9]*": {"output": {"sp_dim": 0}},
        "input_layernorm": {"output": {"sp_dim": 0}},
        "self_attention": {"output": {"sp_dim": 0}},
        "linear_qkv": {"output.0": {"tp_dim": -1}},
        "q_layernorm": {"output": {"tp_dim": 2}},
        "k_layernorm": {"output": {"tp_dim": 2}},
        "scale_mask_softmax": {"output": {"tp_dim": 1}},
        "attention_dropout": {"output": {"tp_dim": 1}},
        "core_attention": {"output": {"tp_dim": -1}},
        "linear_proj": {"output.0": {"sp_dim": 0}},
        "pre_mlp_layernorm": {"output": {"sp_dim": 0}},
        "mlp": {"output": {"sp_dim": 0}},
        "linear_fc1": {"output.0": {"tp_dim": -1, "blocks": [48, 48]}},
        "linear_fc2": {"output.0": {"sp_dim": 0}},
        "final_layernorm": {"output": {"sp_dim": 0}},
        "output_layer": {"output.0": {"tp_dim": -1}},
        "embedding": {"output": {"sp_dim": 0}},
        "embedding_dropout": {"output": {"sp_dim": 0}},
    },
}


#: Planted in the candidate; each is a mistake that megatron-core or a user of it has made.
BUGS = (
    "norm_without_mark",  # the last norm lacks `sequence_parallel`: its gradient is a partial sum
    "input_gradient",  # the second layer's QKV projection does not reduce its input's gradient
    "mean_over_dp",  # the reduction sums over dp and does not divide
)


def train(ctx: Context, layers: int = 2, steps: int = 2, bug: str = "") -> None:
    """Train for some steps; tp, sp, pp, dp and `zero` (the distributed optimizer) are axes."""
    megatron_cpu.apply()
    from megatron.core import parallel_state
    from megatron.core.distributed import finalize_model_grads
    from megatron.core.pipeline_parallel import get_forward_backward_func
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

    ctx.group("dp")  # starts torch.distributed
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=ctx.point.size("tp"),
        pipeline_model_parallel_size=ctx.point.size("pp"),
    )
    model_parallel_cuda_manual_seed(ctx.seed)
    model, config = model_of(ctx, layers)
    parts = _parts(model)
    ctx.initialize(parts)
    wrapped, optimizer = _wrapped(ctx, model, config)
    plant(bug, model, wrapped)
    inner = optimizer.chained_optimizers[0]
    if ctx.point.get("zero", 0):
        _mark_runs(inner, model)
    ctx.watch(parts, inner.optimizer, ANNOTATIONS)
    config.finalize_model_grads_func = finalize_model_grads
    schedule = get_forward_backward_func()

    def forward_step(numbers: Any, chunk: nn.Module) -> Any:
        index = next(numbers)
        with ctx.microbatch(index):
            tokens, labels = _batch(ctx, step, index)
            positions = torch.arange(LENGTH).expand_as(tokens)
            output = chunk(tokens, positions, None, labels=labels)

        def loss_of(losses: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
            loss = losses.mean()
            ctx.loss(loss.detach(), index)
            return loss, {"loss": loss.detach()}

        return output, loss_of

    for _ in range(steps):
        wrapped.zero_grad_buffer()
        optimizer.zero_grad()
        with ctx.step() as step:
            numbers = ctx.microbatches(MICROBATCHES)
            schedule(
                forward_step_func=forward_step,
                data_iterator=iter(numbers),
                model=[wrapped],
                num_microbatches=len(numbers),
                seq_length=LENGTH,
                micro_batch_size=SAMPLES,
                forward_only=False,
            )
            _, norm, _ = optimizer.step()
            ctx.grad_norm(norm)


def model_of(ctx: Context, layers: int) -> tuple[Any, Any]:
    from megatron.core import parallel_state
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer import TransformerConfig

    config = TransformerConfig(
        num_layers=layers,
        hidden_size=32,
        num_attention_heads=4,
        num_query_groups=2,
        ffn_hidden_size=48,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        normalization="RMSNorm",
        gated_linear_unit=True,
        activation_func=nn.functional.silu,
        add_bias_linear=False,
        tensor_model_parallel_size=ctx.point.size("tp"),
        pipeline_model_parallel_size=ctx.point.size("pp"),
        sequence_parallel=bool(ctx.point.get("sp", False)),
        pipeline_dtype=ctx.dtype,
        params_dtype=ctx.dtype,
        use_cpu_initialization=True,
        batch_p2p_comm=True,
        overlap_p2p_comm=False,
        persist_layer_norm=False,
        gradient_accumulation_fusion=False,
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        apply_rope_fusion=False,
    )
    model = GPTModel(
        config,
        get_gpt_layer_local_spec(normalization="RMSNorm"),
        VOCABULARY,
        LENGTH,
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
    )
    return model, config


def plant(bug: str, model: Any, wrapped: Any) -> None:
    if bug == "norm_without_mark":
        model.decoder.final_layernorm.weight.sequence_parallel = False
    elif bug == "input_gradient":
        projection = model.decoder.layers[1].self_attention.linear_qkv
        projection.allreduce_dgrad, projection.disable_grad_reduce = False, True
    elif bug == "mean_over_dp":
        for buffer in wrapped.buffers:
            buffer.gradient_scaling_factor = 1.0
            for bucket in buffer.buckets:
                bucket.gradient_scaling_factor = 1.0
    else:
        assert not bug, f"bug is one of {BUGS}"


def _parts(model: Any) -> dict[str, nn.Module]:
    """The modules of this pipeline stage, by their names in the whole model."""
    parts = {"embedding": model.embedding} if hasattr(model, "embedding") else {}
    for layer in model.decoder.layers:
        parts[f"decoder.layers.{layer.layer_number - 1}"] = layer
    if model.post_process:
        parts["decoder.final_layernorm"] = model.decoder.final_layernorm
        parts["output_layer"] = model.output_layer
    return parts


def _wrapped(ctx: Context, model: Any, config: Any) -> tuple[Any, Any]:
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

    sharded = bool(ctx.point.get("zero", 0))
    ddp = DistributedDataParallelConfig(use_distributed_optimizer=sharded)
    wrapped = DistributedDataParallel(config, ddp, model)
    chosen = OptimizerConfig(
        optimizer="adam",
        lr=1e-3,
        weight_decay=0.01,
        clip_grad=1.0,
        params_dtype=ctx.dtype,
        use_distributed_optimizer=sharded,
    )
    return wrapped, get_megatron_optimizer(chosen, [wrapped])


def _mark_runs(optimizer: Any, model: nn.Module) -> None:
    """Set the range of each parameter that this rank's distributed optimizer holds."""
    for parameter in model.parameters():
        parameter.main_param_range = (0, 0)  # type: ignore[attr-defined]
    groups = zip(optimizer.model_fp32_groups, optimizer.shard_fp32_groups, strict=True)
    for parameters, shards in groups:
        for parameter, shard in zip(parameters, shards, strict=True):
            run = optimizer._get_model_param_range_map(parameter)["param"]
            parameter.main_param_range = (run.start, run.end)
            parameter.main_param = shard


def _batch(ctx: Context, step: int, index: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * ctx.seed + 10 * step + index)
    text = torch.randint(VOCABULARY, (SAMPLES, LENGTH + 1), generator=generator)
    return text[:, :-1], text[:, 1:]
