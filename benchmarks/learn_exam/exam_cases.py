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
    `prefix` begins the name of the module, and tells the sets of the exam apart.
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
    prefix: str = "exam"

    @property
    def module(self) -> str:
        return f"{self.prefix}_{self.name}"

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
    prefix: str = "exam"

    @property
    def module(self) -> str:
        return f"{self.prefix}_{self.name}"


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
        trigger="seed_everything() at the start of an epoch; epoch 1 (step 4) is the first repetition",
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
    Case(
        "tying_never", "tying", differs="gap", zero="gap",
        trigger="construction: embedding and head are two tensors",
        cause="The mapping of tied weights is empty, so the head never shares the embedding's weight.",
        source="https://github.com/huggingface/transformers/pull/43207",
        said="Mamba2ForCausalLM had an empty _tied_weights_keys, so embedding and head were different tensors in spite of the option.",
    ),
    Case(
        "tying_assigned", "tying", differs="gap", zero="gap",
        trigger="load_state_dict; values differ after optimizer.step() of step 0",
        cause="load_state_dict(assign=True) replaces each name of a shared parameter by its own tensor.",
        source="https://github.com/pytorch/pytorch/issues/188346",
        said="Loading with assign=True breaks the aliasing of tied parameters, without an error.",
    ),
    Case(
        "tying_resized", "tying", differs="gap", zero="gap",
        trigger="resize; values differ after optimizer.step() of step 0",
        cause="Embedding and decoder are resized separately and not tied again.",
        source="https://github.com/huggingface/transformers/issues/1730",
        said="After resize_token_embeddings on BertForMaskedLM, the prediction layer is not tied correctly to the embedding.",
    ),
    Case(
        "freezing_module_flag", "freezing", differs="moved", zero="moved",
        trigger="optimizer.step() of step 0, which changes the last layer",
        cause="requires_grad is assigned on the module object, which does not reach its parameters.",
        source="https://github.com/CSCYQJ/MICCAI23-ProtoContra-SFDA/issues/18",
        said="model.outc.requires_grad = False on a module does not freeze the layer; comparing weights shows it.",
    ),
    Case(
        "freezing_norm_statistics", "freezing", differs="drift", zero="drift",
        trigger="forward of step 0, which updates running_mean",
        cause="The frozen backbone is in train mode, so batch norms update their statistics.",
        source="https://github.com/lightly-ai/lightly/issues/1438",
        said="deactivate_requires_grad leaves running_mean and running_var changing; batch norms should be in eval mode.",
    ),
    Case(
        "freezing_overwritten", "freezing", differs="moved", zero="moved",
        trigger="optimizer.step() of step 0, which changes frozen layers",
        cause="A later loop sets requires_grad to True for all parameters.",
        source="https://github.com/ultralytics/yolov5/issues/1213",
        said="Parameters are frozen, and a following line sets requires_grad=True for all of them.",
    ),
    Case(
        "freezing_undone_by_train", "freezing", differs="average", zero="average",
        trigger="forward of step 0, after net.train()",
        cause="net.train() at the start of each epoch undoes the eval mode of the norms.",
        source="https://github.com/poppinace/indexnet_matting/issues/35",
        said="freeze_bn takes no effect because net.train() puts the norms into training mode again.",
    ),
    Case(
        "freezing_forward_no_grad", "freezing", differs="tower",
        trigger="backward of step 0, which does not reach the tower",
        cause="The tower's forward disables gradients although it is to be tuned.",
        source="https://github.com/TinyLLaVA/TinyLLaVA_Factory/issues/17",
        said="The vision encoder's forward has no_grad in spite of an option to tune it; the authors remove it.",
    ),
    Case(
        "ema_only_at_end", "ema", differs="averaged",
        trigger="end of step 0, where the update is missing",
        cause="The average is updated at the end of training instead of every step.",
        source="https://github.com/huggingface/pytorch-image-models/issues/1831",
        said="ModelEma does not follow if update is called at the end of the loop; the maintainer says every step.",
    ),
    Case(
        "ema_not_restored", "ema",
        trigger="copy_to at the end of epoch 0; step 4 starts from the average",
        cause="The average is copied over the network in training for sampling and never taken out.",
        source="https://github.com/huggingface/diffusers/issues/2321",
        said="Without a copy of the model, EMA weights replace those in training when samples are made.",
    ),
    Case(
        "ema_without_buffers", "ema", differs="validation",
        trigger="update after step 0",
        cause="Batch norm statistics are not copied into the averaged model.",
        source="https://github.com/FlyreelAI/sesemi/issues/36",
        said="With EMA, batch norm statistics are not in the update and stay unchanged.",
    ),
    Case(
        "ema_before_step", "ema", differs="average",
        trigger="update of step 0, with the initial weights",
        cause="The average is updated in the hook before the optimizer's step.",
        source="https://github.com/NVIDIA-NeMo/Speech/pull/5169",
        said="Reviewers of NeMo's EMA: optimizer.step has to be complete before the update starts.",
    ),
    Case(
        "ema_evaluated_without", "ema", differs="validation",
        trigger="validation after epoch 0",
        cause="Validation uses the parameters in training instead of the average.",
        source="https://github.com/pengzhiliang/MAE-pytorch/issues/31",
        said="The EMA is updated in training, but evaluate() uses the model's own parameters.",
    ),
    Case(
        "lora_merged_twice", "lora", differs="drift",
        trigger="second merge() at the end of epoch 0",
        cause="merge() adds the update to the base weight although it is merged already.",
        source="https://github.com/huggingface/peft/pull/1355",
        said="Merging was not idempotent: calling merge again adds the delta again, which happens implicitly too.",
    ),
    Case(
        "lora_base_trained", "lora", differs="moved", zero="moved",
        trigger="optimizer.step() of step 0, which changes the base weight",
        cause="The packed projection of the attention keeps requires_grad and goes to the optimizer.",
        source="https://github.com/huggingface/peft/issues/761",
        said="With an attention module inside, in_proj_weight of the base has requires_grad=True and is among the trainable ones.",
    ),
    Case(
        "lora_adapters_frozen", "lora", differs="up",
        trigger="optimizer.step() of step 0, without the adapters",
        cause="mark_only_lora_as_trainable does not turn requires_grad on for adapters that were frozen before.",
        source="https://github.com/microsoft/LoRA/pull/125",
        said="If the whole model is frozen first, parameters with lora_ in their name stay frozen.",
    ),
    Case(
        "accumulation_not_divided", "accumulation",
        trigger="backward of micro-batch 0; weights differ after step 0",
        cause="The loss is not divided by the number of micro-batches.",
        source="https://github.com/karpathy/nanoGPT/issues/168",
        said="The loss was not divided by gradient_accumulation_steps; among other things, the clip value becomes lower.",
    ),
    Case(
        "accumulation_tail_dropped", "accumulation", differs="steps",
        trigger="end of epoch 0, after micro-batch 6",
        cause="Gradients of the incomplete last window are cleared without a step.",
        source="https://github.com/NVIDIA-NeMo/Automodel/pull/2257",
        said="Trailing micro-batches reached backward but no step; zero_grad of the next epoch wiped them.",
    ),
    Case(
        "accumulation_cleared", "accumulation",
        trigger="zero_grad before micro-batch 1 of step 0",
        cause="zero_grad is inside the loop over micro-batches.",
        source="https://github.com/bytetriper/RAE/issues/67",
        said="zero_grad is called per microbatch, so gradients are cleared instead of accumulated.",
    ),
    Case(
        "accumulation_token_mean", "accumulation", differs="weight",
        trigger="backward of micro-batch 0 of step 0",
        cause="Each micro-batch is divided by its own number of tokens and not by that of the whole step.",
        source="https://github.com/huggingface/transformers/pull/34191",
        said="With sequences of varying length, accumulated losses are wrong unless they are divided by the total number of items.",
    ),
    Case(
        "accumulation_carried_over", "accumulation",
        trigger="backward of micro-batch 0 of epoch 1",
        cause="The window restarts with the epoch, and gradients of the incomplete one remain.",
        source="https://github.com/meta-pytorch/torchtune/pull/2745",
        said="With 63 batches and windows of 8, the first step of the next epoch sums 15 batches.",
    ),
    Case(
        "resume_cold_optimizer", "resume",
        trigger="optimizer.step() of step 12, the first after the resume",
        cause="resume() runs before the optimizer exists and drops its state.",
        source="https://github.com/LibreYOLO/libreyolo/pull/277",
        said="resume() found no optimizer yet, so momentum buffers were discarded and every resume started cold.",
    ),
    Case(
        "resume_cold_scheduler", "resume", differs="rate",
        trigger="step 12, the first after the resume",
        cause="The scheduler's state is not in the checkpoint.",
        source="https://github.com/lightly-ai/lightly-train/pull/301",
        said="The rate goes back to the first stage on resume, because the scheduler is neither saved nor restored.",
    ),
    Case(
        "resume_wrong_keys", "resume",
        trigger="load_state_dict before step 20, which loads nothing",
        cause="Keys have the prefix 'model.', and strict=False ignores that none fits.",
        source="https://github.com/pytorch/examples/issues/1029",
        said="Keys began with 'model.' after Lightning; strict=False loaded without an error, and outputs were nonsense.",
    ),
    Case(
        "resume_same_order", "resume", differs="order",
        trigger="randperm of the second run (step 5)",
        cause="The loader's generator is not part of the checkpoint and starts with the same seed.",
        source="https://github.com/kyutai-labs/pocket-tts/pull/287",
        said="The loader keeps no state and its seed is fixed, so every restart replays the same permutation.",
    ),
    Case(
        "resume_rate_reset", "resume", differs="rate",
        trigger="construction of the scheduler; step 16 is the first at a wrong rate",
        cause="The scheduler is built after the optimizer's state is loaded, and sets the rate to its first value.",
        source="https://github.com/torch-points3d/torch-points3d/pull/630",
        said="The optimizer was loaded before the schedulers were built, whose construction resets the rate.",
    ),
    Case(
        "evaluation_left_in_eval", "evaluation", differs="mode",
        trigger="step 3, the first after a validation",
        cause="validate() calls model.eval() in the middle of an epoch and does not return to train mode.",
        source="https://github.com/fartashf/vsepp/issues/4",
        said="Validation within an epoch leaves dropout and norms off until the next epoch begins.",
    ),
    Case(
        "evaluation_in_train_mode", "evaluation", differs="valid",
        trigger="validation after epoch 0",
        cause="Validation does not call model.eval().",
        source="https://github.com/udacity/deep-learning-v2-pytorch/issues/3",
        said="The course's notebooks validate a model with dropout without model.eval(); the author corrects them.",
    ),
    Case(
        "evaluation_functional_dropout", "evaluation", differs="repeat", zero="repeat",
        trigger="first evaluation, after step 5",
        cause="F.dropout is called without training=self.training.",
        source="https://github.com/rixwew/pytorch-fm/issues/21",
        said="F.dropout needs training=self.training, or it stays active after model.eval(); the author fixes it.",
    ),
    Case(
        "evaluation_with_graph", "evaluation", differs="graph", zero="graph",
        trigger="evaluation after epoch 0, whose loss requires a gradient",
        cause="evaluate() is not wrapped in no_grad.",
        source="https://github.com/tianrun-chen/SAM-Adapter-PyTorch/issues/89",
        said="Evaluation is not wrapped in torch.no_grad(), so gradients of validation data could leak.",
    ),
    Case(
        "evaluation_updates_norm", "evaluation", differs="shift", zero="shift",
        trigger="validation after epoch 0, which updates running_mean",
        cause="The validation step puts the model into train mode.",
        source="https://github.com/wdoppenberg/ellipse-rcnn/issues/13",
        said="The validation step sets training mode, because the detector returns losses only then.",
    ),
    Case(
        "initialisation_after_load", "initialisation", differs="distance", zero="distance",
        trigger="init_weights() before step 0",
        cause="The runner calls init_weights() after the constructor has loaded pretrained weights.",
        source="https://github.com/zshn25/DINOv2_mmseg/pull/1",
        said="The runner calls init_weights during training, which overrides pretrained weights set by the backbone.",
    ),
    Case(
        "initialisation_each_fit", "initialisation",
        trigger="initialize() at the start of fit(), before step 0",
        cause="fit() initialises the word weights anew and ignores those that were given.",
        source="https://github.com/MinishLab/model2vec/pull/322",
        said="_initialize, which every fit calls, constructs weights and ignores the original ones.",
    ),
    Case(
        "initialisation_second_pass", "initialisation", differs="distance", zero="distance",
        trigger="second pass of init_weights, before step 0",
        cause="The pass after loading does not know that dt_bias and out_proj.weight are loaded.",
        source="https://github.com/huggingface/transformers/pull/45591",
        said="_init_weights runs again after from_pretrained and overwrites dt_bias and out_proj.weight.",
    ),
    Case(
        "distributed_module_bypass", "distributed", world=2, differs="difference", zero="difference",
        trigger="backward of step 0, without an all-reduce",
        cause="The forward pass of the loss goes through .module and not through DDP.",
        source="https://github.com/jingyaogong/minimind/pull/854",
        said="RL trainers run the loss through .module; hooks are not armed, no all-reduce happens, replicas diverge silently.",
    ),
    Case(
        "distributed_no_sync", "distributed", world=2, differs="spread", zero="spread",
        trigger="optimizer.step() after micro-batch 2, with gradients that differ between ranks",
        cause="no_sync covers the last micro-batch of a window instead of all but the last.",
        source="https://github.com/modelscope/FunASR/pull/3472",
        said="batch_idx % accum_grad synchronizes the first micro-batch and not that of the step; gradients stay local.",
    ),
    Case(
        "distributed_unbroadcast", "distributed", world=2, differs="spread", zero="spread",
        trigger="forward of step 0, with different weights on the ranks",
        cause="Ranks have different seeds, and nobody broadcasts the initial parameters.",
        source="https://github.com/PPPLDeepLearning/plasma-python/pull/34",
        said="With all-reduced updates, initial weights have to be broadcast so that all workers start at the same point.",
    ),
    Case(
        "distributed_token_mean", "distributed", world=2, differs="weights",
        trigger="backward of step 0",
        cause="Each rank averages over its own valid tokens, although their numbers differ.",
        source="https://github.com/pytorch/torchtitan/pull/2206",
        said="Normalizing per rank weights gradients wrongly when ranks have different numbers of valid tokens.",
    ),
    Case(
        "distributed_sequence_norm", "distributed", world=2, differs="spread", zero="spread",
        trigger="optimizer.step() of step 0, with partial gradients of norms",
        cause="Gradients of norms under sequence parallelism are not all-reduced over tensor-parallel ranks.",
        source="https://github.com/NVIDIA/Megatron-LM/issues/1446",
        said="With tensor and sequence parallelism, gradients of final_layernorm differ between ranks before the step.",
    ),
    Case(
        "distributed_router_drift", "distributed", world=2, differs="difference", zero="difference",
        trigger="optimizer.step() of step 0, with a partial gradient of the router",
        cause="The replicated router's gradient is a partial sum and is not reduced.",
        source="https://github.com/pytorch/torchtitan/issues/2387",
        said="Router weights diverge among tensor-parallel ranks after the first step, because the gradient is not reduced.",
    ),
    Case(
        "distributed_fsdp_optimizer", "distributed", world=2,
        trigger="optimizer.step() of step 0, which changes nothing",
        cause="The optimizer is built before fully_shard replaces the parameters.",
        source="https://github.com/facebookresearch/fairscale/issues/423",
        said="The optimizer has to be created after wrapping, unlike with DDP; the docs should say it.",
    ),
    Case(
        "distributed_fsdp_forward_first", "distributed", world=2,
        trigger="optimizer.step() of step 0, which changes nothing",
        cause="A forward pass before the optimizer leaves unsharded parameters registered, which the optimizer takes.",
        source="https://github.com/pytorch/pytorch/issues/149205",
        said="If an FSDP2 model is used before the optimizer is created, parameters do not update.",
    ),
    Case(
        "distributed_gather_detached", "distributed", world=2, differs="text",
        trigger="backward of step 0, which does not reach the text tower",
        cause="all_gather cuts the graph, and the rank's own features are not put back.",
        source="https://github.com/HobbitLong/SupContrast/issues/26",
        said="all_gather does not propagate gradients by itself; for a contrastive loss one has to do it.",
    ),
    Case(
        "distributed_unused_expert", "distributed", world=2, differs="spread", zero="spread",
        trigger="optimizer.step() of step 0: each rank skips one expert",
        cause="Parameters that a rank did not use keep grad=None and miss the step of the other rank.",
        source="https://github.com/NVIDIA-NeMo/Automodel/pull/2995",
        said="Experts without tokens keep grad=None, skip their step, and diverge from ranks that had tokens.",
    ),
    Case(
        "data_labels_apart", "data", differs="mismatch", zero="mismatch",
        trigger="step 0: labels of other images",
        cause="Two loaders, one of images and one of labels, shuffle with their own generators.",
        source="https://github.com/mlcommons/GaNDLF/pull/870",
        said="Data and ground-truth labels were shuffled separately in the training pipeline.",
    ),
    Case(
        "freezing_decayed", "freezing", differs="moved", zero="moved",
        trigger="optimizer.step() of step 0, which shrinks frozen weights",
        cause="Weight decay is applied by hand to all parameters, without a look at requires_grad.",
        source="https://github.com/open-mmlab/OpenPCDet/issues/845",
        said="With the adam_onecycle wrapper, weights of a frozen module still change; with adam they do not.",
    ),
    Case(
        "accumulation_every_step", "accumulation",
        trigger="optimizer.step() after micro-batch 0",
        cause="optimizer.step() is outside the condition on the window.",
        source="https://github.com/lucidrains/reformer-pytorch/issues/97",
        said="The script calls optimizer.step() at every step and not after each window of accumulation.",
    ),
    Case(
        "distributed_local_plateau", "distributed", world=2, differs="spread", zero="spread",
        trigger="the first scheduler.step() at which one rank's loss is a plateau and the other's is not",
        cause="ReduceLROnPlateau gets the loss of the rank instead of the average.",
        source="https://github.com/lucidrains/DALLE-pytorch/issues/268",
        said="Learning rates differ between processes; passing the averaged loss to the scheduler corrects it.",
    ),
)

HEALTHY: tuple[Program, ...] = (
    Program("healthy_resnet", "general", "a residual network for images"),
    Program("healthy_vit", "general", "a vision transformer"),
    Program("healthy_gpt", "general", "a decoder with tied embeddings"),
    Program("healthy_bert", "general", "an encoder with masked words and next sentences"),
    Program("healthy_t5", "general", "an encoder and decoder with relative positions"),
    Program("healthy_lstm", "general", "a stateful LSTM language model"),
    Program("healthy_wgan", "general", "a Wasserstein GAN with gradient penalty"),
    Program("healthy_vae", "general", "a variational autoencoder"),
    Program("healthy_ddpm", "general", "a diffusion model with a tiny U-Net"),
    Program("healthy_gcn", "general", "a graph convolutional network"),
    Program("healthy_reinforce", "general", "a policy gradient"),
    Program("healthy_simclr", "general", "contrastive learning"),
    Program("healthy_seq2seq", "general", "recurrent translation with attention"),
    Program("healthy_tabular", "general", "a table with early stopping"),
    Program("healthy_skipgram", "general", "word vectors with sparse gradients"),
    Program("healthy_dqn", "general", "Q-learning with a target network"),
    Program("healthy_triplet", "general", "metric learning"),
    Program("healthy_mixture_density", "general", "a mixture density network with L-BFGS"),
    Program("healthy_real_nvp", "general", "a normalising flow"),
    Program("healthy_unet", "general", "segmentation"),
    Program("healthy_physics", "general", "a physics-informed network"),
    Program("healthy_mixer", "general", "an MLP-Mixer with mixup"),
    Program("healthy_data_weighted", "data", "a weighted sampler with seeded workers"),
    Program("healthy_data_buckets", "data", "buckets of similar lengths"),
    Program("healthy_data_sharded", "data", "set_epoch, and validation without shuffling", world=2),
    Program("healthy_optimizer_pair", "optimizer", "two optimizers side by side"),
    Program("healthy_optimizer_layerwise", "optimizer", "rates by depth, gradients cleared by hand"),
    Program("healthy_scheduler_one_cycle", "scheduler", "a schedule over batches"),
    Program("healthy_scheduler_plateau", "scheduler", "warm-up by hand, then plateaus"),
    Program("healthy_amp_bfloat", "amp", "bfloat16 without a scaler"),
    Program("healthy_amp_overflow", "amp", "steps that the scaler skips"),
    Program("healthy_clipping_value", "clipping", "clipping in hooks of parameters"),
    Program("healthy_clipping_quantile", "clipping", "a limit that follows recent norms"),
    Program("healthy_tying_autoencoder", "tying", "a transposed weight"),
    Program("healthy_tying_shared_layers", "tying", "one layer applied several times"),
    Program("healthy_freezing_gradual", "freezing", "layers thaw one after another"),
    Program("healthy_freezing_teacher", "freezing", "distillation from a frozen teacher"),
    Program("healthy_ema_swa", "ema", "stochastic weight averaging"),
    Program("healthy_ema_target", "ema", "a slowly moving target network"),
    Program("healthy_lora_merged_once", "lora", "adapters merged at the end"),
    Program("healthy_lora_prefix", "lora", "prefix tokens and an adapter"),
    Program("healthy_accumulation_chunks", "accumulation", "chunks of unequal size"),
    Program("healthy_accumulation_ddp", "accumulation", "no_sync in all but the last", world=2),
    Program("healthy_resume_complete", "resume", "two cuts with the full state"),
    Program("healthy_resume_fine_tune", "resume", "a new head on a loaded encoder"),
    Program("healthy_evaluation_monte_carlo", "evaluation", "dropout in evaluation on purpose"),
    Program("healthy_evaluation_restored", "evaluation", "modes restored after evaluation"),
    Program("healthy_initialisation_orthogonal", "initialisation", "a special start, once"),
    Program("healthy_initialisation_ensemble", "initialisation", "members with their own seeds"),
    Program("healthy_distributed_ddp", "distributed", "unequal inputs under Join", world=2),
    Program("healthy_distributed_fsdp", "distributed", "a sharded transformer", world=2),
    Program("healthy_distributed_tensor_parallel", "distributed", "split layers", world=2),
)
# fmt: on
