"""The silent differences of DeepSpeed 0.19.8, which docs/upstream/deepspeed.md describes."""

from __future__ import annotations

from pytest_trainsafe.reference_models.deepspeed_open.entry import OpenDifference

#: A config with SGD: its updates show the scale of gradients, and zero gradients change nothing.
_SGD = {"optimizer": {"type": "SGD", "params": {"lr": 0.1, "weight_decay": 0.0}}}

OPEN = (
    OpenDifference(
        name="stage3_stale_gradient",
        what="a parameter that a step does not use is updated with an earlier step's gradient",
        program="conditional",
        arguments={"used": "even steps", "microbatches": 1},
        where={"zero": 3, "dp": 1},
        right={"zero": 2, "dp": 1},
        tensor="second.weight",
        step=1,
    ),
    OpenDifference(
        name="stage3_stale_accumulation",
        what="accumulation begins from the last step's gradient if the first micro-batch does "
        "not use the parameter",
        program="conditional",
        arguments={"used": "odd micro-batches"},
        where={"zero": 3, "dp": 1},
        right={"zero": 2, "dp": 1},
        tensor="second.weight",
        step=1,
    ),
    OpenDifference(
        name="offload_stale_gradient",
        what="with an offloaded optimizer, a parameter that a step does not use is updated with "
        "an earlier step's gradient",
        program="conditional",
        arguments={"used": "even steps", "microbatches": 1},
        where={"zero": 2, "dp": 1, "offload": True},
        right={"zero": 2, "dp": 1},
        tensor="second.weight",
        step=1,
    ),
    OpenDifference(
        name="offload_unused_last",
        what="with an offloaded optimizer, a gradient is lost if the last micro-batch does not "
        "use the parameter",
        program="conditional",
        arguments={"used": "even micro-batches"},
        where={"zero": 3, "dp": 1, "offload": True},
        right={"zero": 1, "dp": 1, "offload": True},
        tensor="second.weight",
    ),
    OpenDifference(
        name="stage1_overlap_unused_last",
        what="with overlap_comm, a gradient is not averaged over ranks if the last micro-batch "
        "does not use the parameter",
        program="conditional",
        arguments={"used": "even micro-batches", "microbatches": 4},
        where={"zero": 1, "dp": 2, "overlap_comm": True},
        right={"zero": 2, "dp": 2, "overlap_comm": True},
        tensor="second.weight",
    ),
    OpenDifference(
        name="rank_dependent_branches",
        what="if ranks use different parameters, gradients of different parameters are added",
        upstream=2343,
        program="conditional",
        arguments={"used": "even micro-batches"},
        where={"zero": 1, "dp": 2},
        right={"zero": 0, "dp": 2},
        tensor="first.weight",
    ),
    OpenDifference(
        name="stage3_predivide",
        what="without reduce-scatter, a gradient_predivide_factor of dp divides gradients twice",
        program="conditional",
        candidate_arguments={
            "config": {
                "gradient_predivide_factor": 2.0,
                "zero_optimization": {"reduce_scatter": False},
            }
        },
        where={"zero": 3, "dp": 2},
        right={"zero": 1, "dp": 2},
        tensor="enter.weight",
    ),
    OpenDifference(
        name="stage0_initial_step",
        what="the optimizer has taken a step with zero gradients before training begins",
        upstream=5151,
        program="gpt",
        where={"zero": 0, "dp": 1, "dtype": "bfloat16"},
        right={"zero": 1, "dp": 1, "dtype": "bfloat16"},
        kind="master_param",
        tensor="tokens.weight",
        step=-1,
    ),
    OpenDifference(
        name="stage0_tensor_parallel_norm",
        what="the gradient norm leaves out the gradients on tp ranks above 0",
        program="gpt",
        arguments={"config": _SGD},
        where={"zero": 0, "tp": 2, "dtype": "bfloat16"},
        right={"zero": 1, "tp": 2, "dtype": "bfloat16"},
        kind="grad_norm",
        tensor="grad_norm",
    ),
    OpenDifference(
        name="stage0_float16_loss_scale",
        what="gradients are divided by a loss scale by which the loss was not multiplied",
        upstream=8393,
    ),
    OpenDifference(
        name="stage0_expert_norm",
        what="the gradient norm in half precision leaves out every expert",
        upstream=8613,
    ),
    OpenDifference(
        name="stage0_expert_parallel_clip",
        what="float32 gradients are clipped by the mean of the norms of each rank's gradients",
        upstream=8475,
    ),
    OpenDifference(
        name="pipeline_float32_clip",
        what="all pipeline stages clip by the norm of the first stage's gradients",
    ),
    OpenDifference(
        name="ulysses_mesh",
        what="with a device mesh, gradients are not summed over the ranks that share a sequence",
    ),
    OpenDifference(
        name="ulysses_stages",
        what="with the same loss, gradients of stages 0 to 2 are sp times those of stage 3",
        upstream=5248,
    ),
    OpenDifference(
        name="autocast_float16_clip",
        what="gradients are clipped before they are divided by the loss scale of torch_autocast",
    ),
    OpenDifference(
        name="autocast_float16_backoff",
        what="the loss scale of torch_autocast never shrinks, so that every step is skipped",
    ),
    OpenDifference(
        name="sparse_predivide",
        what="gradients of sparse embeddings are multiplied by gradient_predivide_factor",
    ),
    OpenDifference(
        name="sparse_clip",
        what="clipping does not change the gradients of sparse embeddings",
    ),
    OpenDifference(
        name="resized_batch",
        what="after a change of the batch size, a step is taken before all its micro-batches ran",
    ),
    OpenDifference(
        name="round_robin_fragments",
        what="with round_robin_gradients, functions that read master weights return those of other "
        "parameters",
    ),
    OpenDifference(
        name="universal_stage3_groups",
        what="loading a universal checkpoint gives every parameter group the hyperparameters of "
        "the first group",
    ),
    OpenDifference(
        name="stage1_frozen_export",
        what="float32 weights that are exported from a checkpoint lack the frozen parameters",
        upstream=5439,
    ),
)
