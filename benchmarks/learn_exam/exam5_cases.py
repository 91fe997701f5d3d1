"""The fifth set of the exam: silent mistakes with healthy twins, and healthy programs, as data.

Its writer had read neither the judge nor a program of the other sets but two, which were examples
of their form (`exam_cases.py` describes the fields).  Names and docstrings of the programs say what
they train, and nothing of a mistake.
"""

from __future__ import annotations

from functools import partial

from exam_cases import Case, Program

_case, _program = partial(Case, prefix="exam5"), partial(Program, prefix="exam5")

CASES: tuple[Case, ...] = (
    _case(
        "house_prices",
        "data",
        trigger="loss of step 0, which is over all pairs of houses",
        cause="The prediction has shape (N, 1) and the price (N,), so their difference is N by N "
        "and every house is drawn to the mean price.",
        source="https://github.com/LAMDA-Tabular/TALENT/pull/92",
        said="Shapes (n, 1) and (n,) broadcast to (n, n) without an error, so the loss compares "
        "all pairs of a prediction and a target.",
    ),
    _case(
        "pocket_student",
        "data",
        trigger="loss of step 0 of the student",
        cause="kl_div is given probabilities where it expects log-probabilities.",
        source="https://github.com/microsoft/ProDA/issues/20",
        said="The student's output goes through softmax, not log_softmax, before kl_div; the "
        "author confirms the bug.",
    ),
    _case(
        "slot_queries",
        "optimizer",
        trigger="construction: the converted tensor is no Parameter of the module",
        cause="A Parameter is converted to another dtype as it is assigned, so the attribute is a "
        "tensor that the optimizer never gets.",
        source="https://github.com/pytorch/pytorch/issues/17484",
        said="A Parameter on which .to() is called in the constructor is not registered, and "
        "neither state_dict nor parameters() has it.",
    ),
    _case(
        "chapter_writer",
        "scheduler",
        trigger="step 1, before which the first group keeps the rate of step 0",
        cause="The line that sets the rate stands after the loop over groups, so only the last "
        "group follows the schedule.",
        source="https://github.com/rasbt/LLMs-from-scratch/issues/692",
        said="With the assignment outside of the loop only the last parameter group gets the new "
        "learning rate.",
    ),
    _case(
        "voice_swap",
        "amp",
        trigger="end of step 0, where both optimizers step again",
        cause="After scaler.step() the loop also calls the optimizers' own step().",
        source="https://github.com/IAHispano/Applio/pull/860",
        said="The direct calls of both optimizers' step() are removed, since scaler.step() has "
        "stepped them already.",
    ),
    _case(
        "torn_weights",
        "clipping",
        world=2,
        trigger="step 0, whose gradients are clipped by the norm of a part",
        cause="Each rank clips the gradients that it owns by their own norm, and not by the norm "
        "of all, so ranks clip by different factors.",
        source="https://github.com/sgl-project/SpecForge/pull/663",
        said="Clipping sees the norm of the rank's shard; each rank picks its own coefficient and "
        "the gradient changes direction.",
    ),
    _case(
        "flower_heads",
        "freezing",
        trigger="first step of the second fit, which moves the features",
        cause="require_grad is set, which is no attribute of a tensor, so nothing is frozen.",
        source="https://github.com/udacity/deep-learning-v2-pytorch/issues/12",
        said="The notebook freezes features by param.require_grad = False; the name lacks an s.",
    ),
    _case(
        "picture_captions",
        "evaluation",
        trigger="step 5, the first after a validation",
        cause="After a validation in the middle of an epoch only one of two encoders goes back to "
        "train mode, so the other learns without dropout until the epoch ends.",
        source="https://github.com/fartashf/vsepp/issues/4",
        said="Validation within an epoch puts both encoders into eval mode, and train mode comes "
        "back only at the next epoch.",
    ),
    _case(
        "pseudo_labels",
        "data",
        trigger="step 4, the first after all unlabelled batches were seen",
        cause="itertools.cycle repeats the batches of the first pass, in their order and with "
        "their noise.",
        source="https://github.com/ildoonet/unsupervised-data-augmentation/issues/3",
        said="itertools.cycle over the unlabelled loader does not shuffle again between epochs; "
        "the fix gained almost one percent.",
    ),
    _case(
        "rare_faults",
        "data",
        trigger="first batch, which has two different examples at most",
        cause="WeightedRandomSampler gets a weight for each class and not for each example, so it "
        "draws the first two examples only.",
        source="https://github.com/deep-voice/soundbay/pull/49",
        said="The sampler takes weights of samples; with one weight for each class it chooses the "
        "first and the second sample all the time.",
    ),
    _case(
        "winter_scans",
        "data",
        trigger="second epoch (step 4), which reads scans that the first one changed",
        cause="The augmentation changes the stored scan in place, so it adds up over epochs.",
        source="https://github.com/facebookresearch/pycls/pull/21",
        said="__getitem__ augments in place and changes the loaded data for good; a copy of the "
        "selected image fixes it.",
    ),
    _case(
        "pole_walker",
        "optimizer",
        trigger="backward pass of step 0",
        cause="The advantage is not detached, so the actor's loss trains the critic as well.",
        source="https://github.com/astariul/encode-attend-navigate-pytorch/issues/2",
        said="The policy loss uses the critic's value without a detach, and the critic must not "
        "receive gradients of it.",
    ),
    _case(
        "leaf_average",
        "ema",
        differs="averaged",
        trigger="evaluation of the average, after the last step",
        cause="update_bn is never called, so the averaged net keeps the statistics of the last "
        "weights, which are not its own.",
        source="https://github.com/mosaicml/composer/issues/624",
        said="The averaged model's batch norm statistics are not updated, which leads to very "
        "poor performance.",
    ),
    _case(
        "half_gradients",
        "accumulation",
        trigger="second backward pass of step 0, whose gradients are dropped",
        cause="A flag that is cleared once a step lets only the first micro-batch add its "
        "gradient to the float32 sum.",
        source="https://github.com/AMD-AGI/Primus/pull/1046",
        said="The flag is per iteration and not per micro-batch, so only the first micro-batch's "
        "weight gradient reaches main_grad.",
    ),
    _case(
        "night_shift",
        "resume",
        trigger="random_split of the second job; step 20 may be the first on held-out rows",
        cause="The split into training and validation data is drawn anew when the run goes on, "
        "so rows that were trained on are validated on.",
        source="https://github.com/talmolab/sleap-nn/pull/600",
        said="Without a seed the split is generated again on resume, and images that were trained "
        "on can end up in the validation.",
    ),
    _case(
        "walking_crowd",
        "distributed",
        world=2,
        trigger="first forward pass, which updates the statistics",
        cause="Each rank normalises by the statistics of its own observations only.",
        source="https://github.com/leggedrobotics/rsl_rl/pull/226",
        said="Each rank updates its running normalisation from local observations, so normalizers "
        "of ranks diverge though gradients are synchronised.",
    ),
    _case(
        "face_margin",
        "distributed",
        world=2,
        differs="apart",
        zero="apart",
        trigger="step 0, after which the ranks' centres differ",
        cause="The loss has weights of its own and is not wrapped in DDP, so they are trained by "
        "local gradients.",
        source="https://github.com/KevinMusgrave/pytorch-metric-learning/issues/710",
        said="A loss with a weight, such as ArcFace, must be wrapped in DistributedDataParallel "
        "for its gradients to be synchronised.",
    ),
    _case(
        "street_stream",
        "distributed",
        world=2,
        trigger="first batch, which is the same on both ranks",
        cause="The iterable dataset is not split by rank, so both ranks read the same lines.",
        source="https://github.com/huggingface/datasets/issues/5360",
        said="With DDP an iterable dataset gives duplicated data, unless it is split by rank and "
        "world size.",
    ),
    _case(
        "spiky_rain",
        "distributed",
        world=2,
        differs="mean",
        trigger="step 5, which one rank skips and the other does not",
        cause="Each rank decides by its own loss whether to skip the update, so replicas part.",
        source="https://github.com/ecmwf/WeatherGenerator/issues/2724",
        said="Losses are local to a rank, so the decision to skip a spike must be reduced over "
        "ranks, with a logical or.",
    ),
    _case(
        "byte_patches",
        "distributed",
        world=2,
        trigger="backward pass of step 0",
        cause="The loss is divided by the number of ranks although DDP averages gradients, so "
        "they are too small by that factor.",
        source="https://github.com/sanderwood/bgpt/issues/5",
        said="DDP divides gradients by the world size already; dividing the loss as well makes "
        "them smaller by the world size.",
    ),
)

HEALTHY: tuple[Program, ...] = (
    _program("healthy_two_towers_logit", "general", "a temperature that is learned and clamped"),
    _program("healthy_rival_painters", "optimizer", "a GAN with two optimizers in turns"),
    _program("healthy_glyph_codes", "scheduler", "a VAE, with one cycle of the rate by the step"),
    _program("healthy_river_memory", "general", "truncated backpropagation with a detached state"),
    _program("healthy_maze_replay", "general", "a replay buffer and a target net"),
    _program(
        "healthy_static_replicas",
        "distributed",
        "DDP with a static graph, checkpointing and a module that is used twice",
        world=2,
    ),
    _program("healthy_quick_adapters", "general", "an inner loop on functional parameters"),
    _program("healthy_low_rank", "lora", "additions that are merged and taken out again"),
    _program("healthy_slow_melt", "freezing", "layers that are unfrozen in turn, and an average"),
    _program("healthy_sparse_words", "optimizer", "SparseAdam beside Adam"),
    _program("healthy_spring_fit", "optimizer", "LBFGS with a closure, in float64"),
    _program(
        "healthy_tall_remainders",
        "accumulation",
        "windows of micro-batches of which the last is shorter, mixup and checkpointing",
    ),
    _program("healthy_scaled_restart", "amp", "a loss scale, warm restarts, and a full resume"),
    _program("healthy_patient_stop", "evaluation", "an early stop, and the best weights"),
    _program("healthy_five_folds", "initialisation", "five models that are trained one by one"),
    _program("healthy_fake_quant", "general", "rounded weights with straight-through gradients"),
    _program("healthy_bent_flow", "general", "a flow whose scales start from the first batch"),
    _program("healthy_bonded_graphs", "general", "scattered sums, and losses weighed by learning"),
    _program(
        "healthy_uneven_joined",
        "accumulation",
        "DDP with no_sync, and unequal numbers of batches under Join",
        world=2,
    ),
    _program("healthy_fsdp_layers", "distributed", "FSDP2 with a clipped global norm", world=2),
)
