"""The second set of the exam: silent mistakes with healthy twins, and healthy programs, as data.

A third writer wrote these programs, who had read neither the judge nor the first set
(`exam_cases.py`, which describes the fields).  Their names and docstrings say what they train, and
nothing of a mistake.
"""

from __future__ import annotations

from functools import partial

from exam_cases import Case, Program

_case, _program = partial(Case, prefix="exam2"), partial(Program, prefix="exam2")

CASES: tuple[Case, ...] = (
    _case(
        "pitch_recogniser",
        "data",
        trigger="first batch, which changes stored waves; the loss differs from epoch 1 (step 4)",
        cause="The augmentation adds noise in place to the row of the data set that it was given, "
        "so the stored waves get noisier with every epoch.",
        source="https://github.com/tflearn/tflearn/issues/854",
        said="Scores fell from fold to fold until each got a fresh copy of the data; the reporter "
        "explains that a batch which refers to the stored images is changed, and changes add up.",
    ),
    _case(
        "texture_learner",
        "data",
        trigger="first batch of the second pass over the data (step 5)",
        cause="itertools.cycle keeps the batches of the first pass and repeats them, so the "
        "loader never shuffles again.",
        source="https://github.com/facebookresearch/pytext/pull/86",
        said="itertools.cycle repeats an iterator in one order; taking a new iterator from the "
        "loader instead makes each epoch shuffle.",
    ),
    _case(
        "molecule_energies",
        "data",
        trigger="loss of the first step",
        cause="Predictions of shape [N, 1] minus targets of shape [N] broadcast to [N, N], so each "
        "prediction is pulled to all targets.",
        source="https://github.com/pytorch/pytorch/issues/16045",
        said="A plain linear regression misses its optimum with no error when predictions are "
        "[100, 1] and targets [100]; with targets reshaped it is right.",
    ),
    _case(
        "story_decoder",
        "data",
        trigger="labels of the first batch",
        cause="The end token also pads, and all labels equal to it become -100, so the model is "
        "never taught to end a story.",
        source="https://github.com/huggingface/transformers/issues/23530",
        said="With the padding token set to the end token, the collator sets the label of every "
        "end token to -100, where padding alone was meant.",
    ),
    _case(
        "review_classifier",
        "data",
        trigger="mask of the first forward pass",
        cause="The key padding mask is inverted: words are hidden from attention, and padding is "
        "attended to.",
        source="https://github.com/speechbrain/speechbrain/issues/2276",
        said="A mask that is true on padding was used where one that is true on real positions was "
        "needed, which wiped out the positional signal of all real positions.",
    ),
    _case(
        "sequence_tagger",
        "optimizer",
        trigger="first optimizer step (step 0); the loss differs from step 1",
        cause="The names that are exempt from weight decay say LayerNorm.weight, but the layers "
        "are called norm1, norm2 and final_norm, so their weights decay.",
        source="https://github.com/deepspeedai/DeepSpeedExamples/pull/755",
        said="The default name LayerNorm.weight does not occur in OPT, LLaMA or BLOOM, whose "
        "normalisation layers are named otherwise, so the list of exempt names needs more names.",
    ),
    _case(
        "patch_classifier",
        "scheduler",
        trigger="first scheduler step; the rate is back at its maximum at step 10",
        cause="T_max counts epochs while the scheduler steps with each batch, so the rate goes "
        "down and up several times and does not end at 0.",
        source="https://github.com/ivadomed/ivadomed/issues/57",
        said="Between two changes the cosine schedule, whose period was the number of epochs, was "
        "stepped in each batch, and went through several cycles nobody had asked for.",
    ),
    _case(
        "long_context_copier",
        "amp",
        trigger="first forward pass",
        cause="Casting the model makes the buffer inv_freq bfloat16, and positions are cast to its "
        "type, so positions above 256 collide and angles are wrong.",
        source="https://github.com/EleutherAI/gpt-neox/issues/1003",
        said="Rotary tables computed in the half precision of the model are far off for some "
        "positions, since rounding of a large angle is large against a turn.",
    ),
    _case(
        "world_model",
        "clipping",
        trigger="clipping in the first step (step 0); the loss differs from step 1",
        cause="The helper gets a generator of parameters, spends it on the norm, and clips the "
        "gradients of nothing.",
        source="https://github.com/pytorch/torchtitan/pull/1258",
        said="Given model.parameters(), the clipping utility leaves all gradients alone without a "
        "word, as measuring the norm has used up the generator; a list works.",
    ),
    _case(
        "chat_tuning",
        "tying",
        trigger="the vocabulary grows before step 10; the first separate update is that of step 10",
        cause="After the embedding is resized, the output layer has a copy of its weight, so the "
        "two are tied no more.",
        source="https://github.com/huggingface/transformers/issues/1730",
        said="In a release the prediction layer was not properly tied to the word embeddings once "
        "these were resized; a maintainer points to the fix.",
    ),
    _case(
        "defect_tuning",
        "freezing",
        trigger="first forward pass of the tuning (step 0)",
        cause="The frozen backbone stays in training mode, so its BatchNorm layers use statistics "
        "of the batch and overwrite the pretrained running statistics.",
        source="https://github.com/kdexd/virtex/issues/16",
        said="A linear probe called train() on the whole model; parameters were frozen, but the "
        "running statistics of BatchNorm moved on, which the author confirms to be a bug.",
    ),
    _case(
        "ring_diffusion",
        "ema",
        trigger="end of the first validation, after step 5; the loss differs from step 6",
        cause="The averaged weights are copied into the model for validation, and its own weights "
        "are not put back, so training goes on from the average.",
        source="https://github.com/huggingface/diffusers/issues/7549",
        said="The training script stores the weights and loads the averaged ones for validation, "
        "and no call restores them afterwards; the call was then added.",
    ),
    _case(
        "adapter_tuning",
        "lora",
        trigger="first backward pass (step 0); the loss differs from step 1",
        cause="With a frozen embedding no input of the reentrant checkpoints requires a gradient, "
        "so the adapters get none and the head alone learns.",
        source="https://github.com/huggingface/transformers/pull/25846",
        said="With adapters and gradient checkpointing, a hook has to make the output of the input "
        "embedding require a gradient.",
    ),
    _case(
        "caption_decoder",
        "accumulation",
        trigger="first window (step 0); the loss differs from step 1",
        cause="Each micro-batch is averaged over its own tokens and then over micro-batches, so "
        "tokens of short captions weigh more than those of long ones.",
        source="https://github.com/huggingface/blog/pull/2414",
        said="For losses over tokens, accumulation equals the full batch if the sum over all of "
        "its micro-batches is divided by the number of all of their tokens; trainers averaged "
        "the means.",
    ),
    _case(
        "warm_start",
        "resume",
        trigger="load_state_dict before step 16",
        cause="The names in the file begin with `model.`, and with strict=False none of them is "
        "loaded, so the second part starts from random weights.",
        source="https://github.com/pytorch/examples/issues/1029",
        said="A file written through a Lightning module has a prefix before all names; loading it "
        "with strict=False gave no error and a useless model.",
    ),
    _case(
        "attention_forecaster",
        "evaluation",
        trigger="first validation, after step 4",
        cause="scaled_dot_product_attention gets the dropout rate in evaluation mode too, where it "
        "drops attention weights all the same.",
        source="https://github.com/pytorch/pytorch/issues/124464",
        said="The function does not know the mode of the module that calls it and always drops "
        "with the rate given; 0 must be passed in evaluation.",
        differs="val",
    ),
    _case(
        "query_ranker",
        "initialisation",
        trigger="initialisation before the first step",
        cause="The custom initialisation overwrites the zero row of padding_idx, which then gets "
        "no gradient, so padding adds a constant random vector to each sum.",
        source="https://github.com/pytorch/pytorch/issues/6411",
        said="After weights with a padding_idx are initialised by hand, padding no longer gives "
        "zeros; the reporter calls it dangerous, and a maintainer offers a note in the docs.",
    ),
    _case(
        "corridor_agent",
        "freezing",
        trigger="backward pass of the first step; the loss differs from step 1",
        cause="The bootstrapped value is not detached, so the gradient also changes the target of "
        "the regression.",
        source="https://github.com/datawhalechina/easy-rl/pull/117",
        said="In the example code the temporal-difference target has no detach() while both values "
        "come from one network, so it is no semi-gradient method.",
    ),
    _case(
        "replica_diffuser",
        "distributed",
        trigger="first backward pass (step 0); the loss differs from step 1",
        cause="The loss is computed through ddp.module instead of the wrapper, which then reduces "
        "no gradients, so each rank trains its own model.",
        source="https://github.com/pytorch/pytorch/pull/20282",
        said="A test pins down that calling ddp.module(input) synchronises no gradients, as the "
        "wrapper is not prepared for the backward pass.",
        world=2,
        zero="spread",
    ),
    _case(
        "shared_forecast",
        "scheduler",
        trigger="a validation in which the ranks disagree on a stall: the second one, after step 5",
        cause="ReduceLROnPlateau gets the validation loss of its own rank, so the ranks lower "
        "their rates at different times.",
        source="https://github.com/lucidrains/DALLE-pytorch/issues/268",
        said="Logs show another learning rate in each process; the answer is to give the scheduler "
        "the loss averaged over workers.",
        world=2,
        zero="gap",
    ),
    _case(
        "sharded_pretraining",
        "distributed",
        trigger="first optimizer step (step 0)",
        cause="The optimizer is built from parameters listed before fully_shard replaced them, so "
        "the sharded parameters are never updated.",
        source="https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html",
        said="fully_shard turns the parameters into DTensors, and the optimizer must be made from "
        "those.",
        world=2,
    ),
    _case(
        "split_mlp",
        "distributed",
        trigger="first backward pass (step 0); the loss differs from step 1",
        cause="The input of the split block has no all-reduce in its backward pass, so replicated "
        "layers before it get a partial gradient, another one in each rank.",
        source="https://github.com/NVIDIA/Megatron-LM/issues/559",
        said="The block is entered through a function that is the identity forwards and an "
        "all-reduce backwards, and left through the opposite; only so does it equal one device.",
        world=2,
        zero="spread",
    ),
    _case(
        "routed_experts",
        "distributed",
        trigger="reduction of gradients in the first step (step 0); the loss differs from step 1",
        cause="The gradients of the experts are averaged over ranks with all others, although each "
        "rank has another expert.",
        source="https://github.com/facebookresearch/fairscale/issues/871",
        said="Each device has its own expert, so gradients of experts must be left out of the "
        "all-reduce; the answer is a process group of one for them.",
        world=2,
    ),
    _case(
        "paired_encoders",
        "distributed",
        trigger="backward pass of the first step (step 0); the loss differs from step 1",
        cause="dist.all_gather returns features without a gradient, so the encoders learn nothing "
        "from their use as the other side of each comparison.",
        source="https://github.com/mlfoundations/open_clip/issues/1047",
        said="With torch.distributed.all_gather in place of the variant with gradients the loss is "
        "worse than on one device, because it does not take part in autograd.",
        world=2,
    ),
)

HEALTHY: tuple[Program, ...] = (
    _program(
        "healthy_speech_ctc",
        "general",
        "packed sequences, CTC with lengths after a strided convolution, clipping that rarely acts",
    ),
    _program(
        "healthy_lbfgs_oscillator",
        "optimizer",
        "L-BFGS with closures that run several times a step, and gradients of gradients",
    ),
    _program(
        "healthy_segmentation",
        "data",
        "joint flips of images and masks, ignore_index 255, two losses, a polynomial schedule",
    ),
    _program(
        "healthy_functional_ensemble",
        "general",
        "torch.func: stacked members, vmap over grad_and_value, updates without an optimizer",
    ),
    _program(
        "healthy_citation_graph",
        "general",
        "sparse full-batch graph with few labelled nodes, weight decay of one layer alone, tests",
    ),
    _program(
        "healthy_momentum_contrast",
        "ema",
        "slow key encoder without gradients, a queue written in place, contrast with old keys",
    ),
    _program(
        "healthy_actor_critic",
        "general",
        "clipped surrogate over several updates a rollout, detached advantages, shared trunk",
    ),
    _program(
        "healthy_scaled_recipe",
        "amp",
        "autocast with a scaler that grows, unscale_ before clipping, warm-up then cosine",
    ),
    _program(
        "healthy_gradual_thawing",
        "freezing",
        "layers frozen at first and thawed by a callback through add_param_group with lower rates",
    ),
    _program(
        "healthy_distilled_student",
        "general",
        "fixed teacher in evaluation mode, KL with batchmean, averaged copy with buffers for tests",
    ),
    _program(
        "healthy_replicas_accumulate",
        "distributed",
        "DistributedDataParallel with no_sync in micro-batches, and a sampler told of each epoch",
        world=2,
    ),
    _program(
        "healthy_sharded_restart",
        "distributed",
        "fully_shard with recomputation and clipping; weights and state move into a new model",
        world=2,
    ),
)
