"""Ten training programs as public projects have them, with the faults that are planted in them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """What is wrong, the code at fault, and a few words that a right diagnosis contains."""

    what: str
    where: str
    cause: str


@dataclass(frozen=True)
class Case:
    """A program (a module with `train(ctx, fault="")`), its Point, and its faults by name."""

    module: str
    point: dict[str, object]
    faults: dict[str, Fault]


CASES: tuple[Case, ...] = (
    Case(
        "outside_ddp",
        {"dp": 2},
        {
            "never-syncs": Fault(
                "The number of the last micro-batch is one too high, so no_sync stays on in every"
                " backward and gradients are never averaged over dp.",
                "train: the choice of no_sync by `position == last` (DistributedDataParallel)",
                "gradients are not reduced over dp: an all-reduce is missing",
            ),
            "zero-in-loop": Fault(
                "Gradients are cleared before every micro-batch instead of once a step, so only"
                " the last micro-batch counts.",
                "train: optimizer.zero_grad() in the loop over micro-batches",
                "gradients are cleared between micro-batches; the earlier micro-batch is lost",
            ),
            "head-after-wrap": Fault(
                "The head is replaced after DistributedDataParallel has wrapped the network, so"
                " the new head's gradients are not averaged over dp.",
                "train: the assignment of net.head after DistributedDataParallel(...)",
                "the gradients of head are not reduced over dp",
            ),
        },
    ),
    Case(
        "outside_fsdp",
        {"dp": 2},
        {
            "local-norm": Fault(
                "The gradient norm is that of the rank's own shards, so each rank clips by another"
                " factor.",
                "clip_gradients: the all_reduce of the sum of squares",
                "the gradient norm is not summed over dp",
            ),
            "bf16-reduce": Fault(
                "Gradients are reduce-scattered in bfloat16 instead of float32 or wider.",
                "shard: MixedPrecisionPolicy(reduce_dtype=...) given to fully_shard",
                "the reduction's gradients are cast to bfloat16",
            ),
            "local-tokens": Fault(
                "The loss is divided by dp times the rank's own target tokens instead of those of"
                " all ranks.",
                "count_targets: the all_reduce of the number of target tokens (the loss's divisor)",
                "the loss is divided by a wrong number: the rank's own tokens, not summed over dp",
            ),
        },
    ),
    Case(
        "outside_tensor_parallel",
        {"tp": 2, "sp": True},
        {
            "softmax-scale": Fault(
                "The scale of the attention scores uses the width divided by the rank's own number"
                " of heads instead of the size of a head.",
                "Attention.forward",
                "the forward of attention is wrong: its softmax scale depends on tp",
            ),
            "norm-not-in-plan": Fault(
                "ffn_norm is not in the parallel plan, so each rank keeps the gradient from its own"
                " part of the sequence.",
                "parallelize: the plan's entry for ffn_norm (SequenceParallel)",
                "the gradient of ffn_norm.weight is a partial sum: an all-reduce over tp is missing",
            ),
            "norm-reduced-twice": Fault(
                "The gradients of norms, which DTensor sums over tp, are summed over tp once more.",
                "reduce_gradients: the all_reduce over tp",
                "the gradients of norms are tp times too large: summed twice over tp",
            ),
        },
    ),
    Case(
        "outside_pipeline",
        {"pp": 2},
        {
            "layer-offset": Fault(
                "A stage numbers its layers from 1, so the second stage scales its branches as the"
                " first layers do.",
                "Stage.__init__: the number given to Block (Block.forward uses its scale)",
                "the forward of layers on the second stage is wrong: wrong layer number, scale",
            ),
            "scaled-twice": Fault(
                "The schedule divides gradients by the number of micro-batches, by which the loss"
                " is divided already.",
                "train: Schedule1F1B(scale_grads=True)",
                "gradients are 4 (the number of micro-batches) times too small",
            ),
            "tied-not-summed": Fault(
                "The gradients of the two copies of the tied embedding are not summed, so the"
                " copies drift apart.",
                "train: the all_reduce of module.embedding.weight.grad over pp",
                "the gradient of embedding.weight lacks an all-reduce over pp (first, last stage)",
            ),
        },
    ),
    Case(
        "outside_muon",
        {"dp": 2},
        {
            "norm-of-batch": Fault(
                "A batch of matrices is normalised by the norm of the whole batch instead of each"
                " matrix's own before the Newton-Schulz iterations.",
                "orthogonalize",
                "the optimizer's step of matrices in a batch is wrong: norm over the batch",
            ),
            "last-round-dropped": Fault(
                "The number of matrices is rounded down to a multiple of dp, so the last one is"
                " never updated.",
                "Muon.step: the number of matrices that are updated",
                "projection.weight is not updated by the optimizer's step",
            ),
            "decays-twice": Fault(
                "Weight decay is applied by the owner before the broadcast and by every rank after"
                " it.",
                "Muon.step: matrix.mul_ after the broadcast",
                "the optimizer's step applies weight decay twice",
            ),
        },
    ),
    Case(
        "outside_diloco",
        {"dp": 2},
        {
            "not-restarted": Fault(
                "Workers go on from their own weights instead of the shared weights of the last"
                " outer step.",
                "train: worker.model.load_state_dict(model.state_dict())",
                "stale weights: outer gradients of the second step are wrong",
            ),
            "summed": Fault(
                "The workers' changes are summed instead of averaged.",
                "outer_gradients: the divisor after the all_reduce",
                "outer gradients are 2 (dp) times too large: sum instead of mean",
            ),
            "same-data": Fault(
                "Workers are numbered from 0 on every rank, so all of them draw the first worker's"
                " data.",
                "train: the number of the rank's first worker (the seed in batch)",
                "ranks of dp train on the same data",
            ),
        },
    ),
    Case(
        "outside_lora",
        {"tp": 2},
        {
            "default-alpha": Fault(
                "Ranks other than the first scale column-parallel adapters by 1 instead of"
                " alpha / rank.",
                "LoraColumn.__init__: self.scale (LoraColumn.forward uses it)",
                "the forward of LoraColumn is wrong on tp rank 1: the adapter's scale",
            ),
            "low-rank-not-copied": Fault(
                "The gradients of lora_a's output, each of which comes from a rank's own columns,"
                " are not summed over tp.",
                "LoraColumn.forward: _Copy.apply on lora_a's output",
                "the gradient at lora_a's output is a partial sum: an all-reduce over tp is missing",
            ),
            "bias-on-every-rank": Fault(
                "The bias of row-parallel layers is added on every rank before the all-reduce.",
                "RowLinear.forward",
                "the forward of RowLinear is wrong: its bias is added tp times",
            ),
        },
    ),
    Case(
        "outside_ema",
        {"dp": 2},
        {
            "average-before-step": Fault(
                "The average is updated before the optimizer's step, so it follows the weights one"
                " step late.",
                "train: ema.update before optimizer.step",
                "the average (ema) holds stale weights",
            ),
            "local-half-life": Fault(
                "The decay follows from the rank's own images of a step instead of those of all"
                " ranks.",
                "train: the number of images in the step, from which the decay follows",
                "the decay of the average (ema) is wrong",
            ),
            "not-broadcast": Fault(
                "The average is updated on the first rank and not sent to the others.",
                "WeightAverage.update: the broadcast",
                "the average (ema) on dp rank 1 is stale: a broadcast is missing",
            ),
        },
    ),
    Case(
        "outside_batch_norm",
        {"dp": 2},
        {
            "backward-not-synced": Fault(
                "The backward uses the sums of the rank's own gradients instead of those of all"
                " ranks.",
                "_Normalize.backward (SyncedBatchNorm): the all_reduce of the sums",
                "the backward of SyncedBatchNorm is wrong: an all-reduce over dp is missing",
            ),
            "mean-of-variances": Fault(
                "The variance is the mean of the ranks' variances around their own means, which"
                " leaves out how far the means are apart.",
                "_Normalize.forward (SyncedBatchNorm)",
                "the forward of SyncedBatchNorm is wrong: its variance over dp",
            ),
            "running-stats-local": Fault(
                "The running statistics are updated by the rank's own images instead of those of"
                " all ranks.",
                "SyncedBatchNorm.forward: the update of running_mean and running_var",
                "the buffers running_mean and running_var are not synchronised over dp",
            ),
        },
    ),
    Case(
        "outside_vocabulary",
        {"dp": 2, "tp": 2},
        {
            "last-row-masked": Fault(
                "A shard's boundary is one row too low, so the last row of every rank is looked up"
                " by nobody and gives zeros.",
                "VocabularyEmbedding.forward",
                "the forward of VocabularyEmbedding is wrong: the mask leaves out a row",
            ),
            "lookup-detached": Fault(
                "The looked-up rows are detached before the all-reduce, so the embedding gets"
                " gradients from the tied head only.",
                "VocabularyEmbedding.forward",
                "the lookup is detached: the gradient of embedding.weight lacks a term",
            ),
            "sum-over-dp": Fault(
                "The softmax's denominators are summed over dp instead of tp.",
                "train: sum_group, the group of the second all_reduce in _CrossEntropy.forward",
                "the loss is wrong: an all-reduce over the wrong group, dp instead of tp",
            ),
        },
    ),
)
