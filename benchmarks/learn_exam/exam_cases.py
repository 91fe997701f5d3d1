"""The cases of the exam: silent mistakes of training programs with healthy twins, as data.

Each program is a module with a function `train(healthy, seed, size)`, which runs in every rank and
returns series of numbers; "loss" falls in healthy runs.  `train(healthy=False)` makes the mistake,
and differs from the twin in nothing else.  `HEALTHY` lists programs without a faulty variant, whose
`train` takes `seed` and `size`.  `exam_run.py` runs them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal[
    "data", "optimizer", "scheduler", "amp", "clipping", "tying", "freezing", "ema", "lora",
    "accumulation", "resume", "evaluation", "initialisation", "distributed",
]  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A mistake that somebody made and reported, in a small program.

    `trigger` says where in the program the mistake first has an effect; steps count from 0.
    `source` is the public description, and `said` what it says, in other words.  The two variants
    differ in the series `differs`.  The series `zero`, if there is one, stays 0 in healthy runs.
    """

    name: str
    kind: Kind
    trigger: str
    cause: str
    source: str
    said: str
    world: int = 1
    differs: str = "loss"
    zero: str | None = None
    other_size: int = 24

    @property
    def module(self) -> str:
        return f"exam_{self.name}"

    @property
    def own_healthy(self) -> tuple[dict[str, int], ...]:
        """Arguments for healthy runs of the same program with other seeds and sizes."""
        return ({"seed": 1}, {"seed": 2}, {"seed": 3, "size": self.other_size})


@dataclass(frozen=True)
class Program:
    """A program without a mistake; its kind is "general" if it is no relative of a case."""

    name: str
    kind: Kind | Literal["general"]
    what: str
    world: int = 1

    @property
    def module(self) -> str:
        return f"exam_{self.name}"


# fmt: off
CASES: tuple[Case, ...] = (
    Case(
        "data_worker_seeds", "data",
        trigger="second batch of the first epoch, which the second worker loads",
        cause="Every worker starts with a copy of the dataset's one generator, so workers draw the same noise.",
        source="https://github.com/wolny/pytorch-3dunet/issues/32",
        said="Rotation angles repeat across workers; the maintainer says that workers share a dataset made with one fixed seed.",
    ),
    Case(
        "data_set_epoch", "data", world=2, differs="order",
        trigger="first batch of epoch 1 (step 4)",
        cause="DistributedSampler.set_epoch is never called, so all epochs shuffle with epoch 0.",
        source="https://github.com/pytorch/pytorch/issues/31771",
        said="With DistributedSampler alone, each epoch samples the data in the same order.",
    ),
    Case(
        "data_same_on_ranks", "data", world=2,
        trigger="step 0: both ranks get the same batch",
        cause="The iterable dataset is not split by rank, so data parallelism trains on duplicates.",
        source="https://github.com/huggingface/datasets/issues/5360",
        said="An IterableDataset under DDP yields duplicated data, because it looks at worker info and not at the rank.",
    ),
    Case(
        "data_shuffle_off", "data",
        trigger="step 0: the first batch has one class only",
        cause="The training DataLoader is made without shuffle=True over data sorted by class.",
        source="https://github.com/Deci-AI/super-gradients/issues/416",
        said="Default loader parameters leave out shuffle, so batches of ImageNet hold a single class.",
    ),
    Case(
        "data_first_batch", "data", differs="means",
        trigger="step 1, which gets the batch of step 0 again",
        cause="next(iter(loader)) inside the loop makes a new iterator each step.",
        source="https://github.com/ZhaoJ9014/face.evoLVe/pull/39",
        said="Taking next of a new iterator in the loop gives the first batch always; the iterator belongs outside.",
    ),
    Case(
        "data_reseeded_epochs", "data", differs="order",
        trigger="randperm at the start of epoch 1 (step 4)",
        cause="The global seed is set again at the start of every epoch.",
        source="https://github.com/Lightning-AI/pytorch-lightning/issues/20412",
        said="With seeded workers, each epoch applies exactly the same augmentations.",
    ),
    Case(
        "optimizer_replaced_layer", "optimizer", differs="head",
        trigger="optimizer.step() of step 0, which leaves the replaced layers as they are",
        cause="The optimizer is built before layers are replaced, and holds the parameters of the old ones.",
        source="https://github.com/meta-pytorch/opacus/issues/432",
        said="ModuleValidator.fix after the optimizer is built replaces layers whose new parameters the optimizer does not track.",
    ),
    Case(
        "optimizer_plain_list", "optimizer", differs="inner",
        trigger="optimizer.step() of step 0, which leaves the inner layers as they are",
        cause="Layers in a Python list are not registered, so model.parameters() leaves them out.",
        source="https://github.com/pytorch/pytorch/issues/59925",
        said="Modules in a plain list are not registered, and optimizers silently do not update them.",
    ),
    Case(
        "optimizer_no_zero_grad", "optimizer",
        trigger="backward of step 1, which adds to the gradients of step 0",
        cause="optimizer.zero_grad() is never called.",
        source="https://github.com/yastrebksv/TennisCourtDetector/issues/7",
        said="base_trainer.py has no optimizer.zero_grad(); the author agrees and adds it.",
    ),
    Case(
        "optimizer_gan_leftover", "optimizer",
        trigger="second backward of step 0, into gradients of the generator's loss",
        cause="The generator's optimizer is cleared twice and the critic's never, so the generator's loss is added to the critic's step.",
        source="https://github.com/Lightning-AI/pytorch-lightning/issues/591",
        said="zero_grad clears one network of a GAN only, so gradients left over from the other loss accumulate.",
    ),
    Case(
        "optimizer_decay_groups", "optimizer", differs="norm",
        trigger="optimizer.step() of step 0",
        cause="The condition on parameter names is inverted: biases and norms decay, matrices do not.",
        source="https://github.com/facebookresearch/BalancingGroups/issues/6",
        said="AdamW decays only parameters whose names contain bias or LayerNorm.weight, the opposite of the original code.",
    ),
    Case(
        "optimizer_missing_group", "optimizer", differs="head",
        trigger="optimizer.step() of step 0, which leaves the head as it is",
        cause="The last parameter group is built and not appended.",
        source="https://github.com/zjunlp/HVPNeT/issues/5",
        said="The groups of the CRF and of the last layer were filled without parameters.append, so these were not trained.",
    ),
    Case(
        "optimizer_zero_grad_per_epoch", "optimizer",
        trigger="backward of step 1",
        cause="zero_grad is called at the start of an epoch instead of a step.",
        source="https://github.com/pytorch/pytorch/issues/47175",
        said="A nasty bug is to forget zero_grad, or to call it once an epoch instead of once an iteration.",
    ),
    Case(
        "scheduler_per_batch", "scheduler", differs="rate",
        trigger="scheduler.step() after batch 0 of epoch 0",
        cause="A scheduler whose length is in epochs is stepped after every batch.",
        source="https://github.com/ivadomed/ivadomed/pull/55",
        said="The scheduler was stepped in the loop over batches instead of epochs, so the rate changed after each batch.",
    ),
    Case(
        "scheduler_never_stepped", "scheduler", differs="rate",
        trigger="optimizer.step() of step 1, at the rate of step 0",
        cause="The scheduler is built and its step() is never called.",
        source="https://github.com/tumurzakov/AnimateDiff/issues/11",
        said="The printed state of the scheduler stays at _step_count 1 while training goes on.",
    ),
    Case(
        "scheduler_order", "scheduler", differs="rate",
        trigger="scheduler.step() of step 2, before optimizer.step(): the rate falls a step early",
        cause="scheduler.step() comes before optimizer.step(), which skips the first value of the schedule.",
        source="https://github.com/zju3dv/NeuralRecon/issues/51",
        said="torch warns that the scheduler is stepped before the optimizer, so that the first value is skipped.",
    ),
    Case(
        "scheduler_per_process", "scheduler", world=2, differs="rate",
        trigger="scheduler.step() of step 0",
        cause="The wrapper steps the scheduler once per process although its length already accounts for them.",
        source="https://github.com/huggingface/transformers/pull/24088",
        said="The prepared scheduler runs num_processes times too fast, because its number of steps accounts for processes already.",
    ),
    Case(
        "scheduler_twice", "scheduler", differs="rate",
        trigger="end of epoch 0 (after step 4)",
        cause="The scheduler is stepped per batch in the training function and again per epoch outside.",
        source="https://github.com/aimagelab/meshed-memory-transformer/issues/71",
        said="train_xe steps the scheduler per batch, and it is also stepped per epoch.",
    ),
    Case(
        "scheduler_or_optimizer", "scheduler", differs="weights",
        trigger="step 0: weights do not change",
        cause="scheduler.step() is called instead of optimizer.step() when there is a scheduler.",
        source="https://github.com/ClementPinard/SfmLearner-Pytorch/issues/5",
        said="With a branch that steps either the scheduler or the optimizer, the loss stays; both must be called.",
    ),
    Case(
        "amp_clip_scaled", "amp", differs="norm",
        trigger="clip_grad_norm_ of step 0, on gradients times 4096",
        cause="scaler.unscale_ is missing before clip_grad_norm_.",
        source="https://github.com/pytorch/examples/issues/1196",
        said="The minGPT example clips without scaler.unscale_, which is needed before gradients are changed.",
    ),
    Case(
        "amp_scaler_per_epoch", "amp", differs="scale",
        trigger="scaler.scale of the first step of epoch 1 (step 5)",
        cause="The GradScaler is made per epoch, so the scale that it has found is lost.",
        source="https://github.com/conservationtechlab/animl-py/issues/298",
        said="A new GradScaler per epoch is a bug, because scaling factors should be kept across epochs.",
    ),
    Case(
        "amp_stale_cache", "amp",
        trigger="forward of step 1, with the casts of step 0",
        cause="A single autocast region around the loop keeps its cache of cast weights across optimizer steps.",
        source="https://github.com/X-GenGroup/Flow-Factory/pull/186",
        said="An outer autocast around the loop serves stale casts after optimizer.step, which froze training.",
    ),
    Case(
        "amp_backward_inside", "amp", differs="weight",
        trigger="backward of step 0: the matrix products of the custom function run in bfloat16",
        cause="loss.backward() is called inside the autocast region.",
        source="https://docs.pytorch.org/docs/2.13/user_guide/torch_compiler/torch.compiler_backward.html",
        said="Autocast should wrap only forward pass and loss; backward passes under it are not recommended.",
    ),
    Case(
        "clipping_before_backward", "clipping", differs="norm",
        trigger="optimizer.step() of step 0, with an unclipped gradient",
        cause="clip_grad_norm_ is called in the training step, before backward.",
        source="https://github.com/simchowitzlabpublic/nano-world-model/pull/22",
        said="The clip call in training_step runs before backward, so the gradient of the step is never capped.",
    ),
    Case(
        "clipping_after_step", "clipping",
        trigger="optimizer.step() of step 0, with an unclipped gradient",
        cause="clip_grad_norm_ is called after optimizer.step().",
        source="https://github.com/VGraphRNN/VGRNN/issues/4",
        said="clip_grad_norm after opt.step does nothing and should move before it.",
    ),
    Case(
        "clipping_exhausted", "clipping",
        trigger="second loop of the helper in step 0, over no parameter",
        cause="The clipping helper iterates twice over the generator model.parameters().",
        source="https://github.com/pytorch/torchtitan/pull/1258",
        said="The helper clips nothing if it is given a generator, which its first pass exhausts.",
    ),
    Case(
        "clipping_micro_batch", "clipping",
        trigger="backward of micro-batch 1, which adds to a clipped sum",
        cause="clip_grad_norm_ runs after every micro-batch instead of once before the step.",
        source="https://github.com/huggingface/transformers/issues/1563",
        said="With accumulation, clipping belongs before optimizer.step and not after each backward.",
    ),
    Case(
        "clipping_some_modules", "clipping", differs="weights",
        trigger="judge.step() of step 0",
        cause="clip_grad_norm_ gets the parameters of one discriminator only.",
        source="https://github.com/lucidrains/audiolm-pytorch/issues/256",
        said="Only the STFT discriminator is clipped; the other discriminators' parameters are left out.",
    ),
)

HEALTHY: tuple[Program, ...] = (
)
# fmt: on
