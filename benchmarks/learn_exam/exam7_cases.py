"""The seventh set of the exam: silent mistakes with healthy twins, and healthy programs, as data.

Its writer had read neither the judge nor a program of the other sets but two, which were examples
of their form (`exam_cases.py` describes the fields).  Names and docstrings of the programs say what
they train and which report they follow, and nothing of a mistake.
"""

from __future__ import annotations

from functools import partial

from exam_cases import Case, Program

_case, _program = partial(Case, prefix="exam7"), partial(Program, prefix="exam7")

CASES: tuple[Case, ...] = (
    _case(
        "harbour_experts",
        "distributed",
        trigger="gradients of step 0",
        cause="The gradient of an expert sums over the examples of all ranks and is not divided by "
        "their number, so experts take steps that are too large.",
        source="https://github.com/NVIDIA/Megatron-LM/pull/5956",
        said="Tokens of every rank reach an expert, yet its gradient is only averaged over its "
        "replicas, so it is too large by the size of the expert group.",
        world=2,
    ),
    _case(
        "folded_scrolls",
        "distributed",
        trigger="labels of step 0",
        cause="Labels are shifted after the sequence is split, so the last position of a part has "
        "no label and the first token of the next part is never predicted.",
        source="https://github.com/NVIDIA-BioNeMo/bionemo-recipes/pull/1449",
        said="A loss that shifts the labels of each rank's part mixes up those at the borders; "
        "shift before the split.",
        world=2,
    ),
    _case(
        "echo_phrases",
        "distributed",
        trigger="gradients of step 0",
        cause="Both stages hold a copy of the tied table and nothing adds up its gradients, so the "
        "copies move apart.",
        source="https://github.com/uw-syfi/piper/issues/13",
        said="Tied embeddings on two devices are duplicated and their gradients are not reduced "
        "before the optimizer's step.",
        world=2,
    ),
    _case(
        "kiln_readings",
        "distributed",
        trigger="masks of step 0",
        cause="The first rank's loader draws its seeds from the global generator, so ranks of a "
        "tensor-parallel group draw other dropout masks for the same activations.",
        source="https://github.com/NVIDIA/Megatron-LM/pull/206",
        said="A loader on one rank alone consumes random state, after which the states of a "
        "tensor-parallel group differ, on which dropout relies.",
        world=2,
    ),
    _case(
        "plankton_fsdp",
        "distributed",
        trigger="gradients of step 0",
        cause="The model is sharded over a mesh of one rank and replicated by nobody, so gradients "
        "stay on their rank and the replicas train apart.",
        source="https://github.com/verl-project/verl/issues/7493",
        said="With a sharding group of one rank on several devices no gradient is synchronised, "
        "and nothing says so.",
        world=2,
    ),
    _case(
        "orchard_yield",
        "distributed",
        trigger="the first epoch that is the best on one rank alone",
        cause="Each rank chooses the best epoch by the score of its own share of the validation "
        "data, so ranks go on from weights of other epochs.",
        source="https://github.com/Lightning-AI/pytorch-lightning/issues/4319",
        said="After training with several processes, they have different paths of the best "
        "checkpoint.",
        world=2,
    ),
    _case(
        "gull_tracks",
        "distributed",
        trigger="data of step 0",
        cause="The stream is divided among the workers of a loader but not among ranks, so all "
        "ranks train on the same examples.",
        source="https://github.com/huggingface/datasets/issues/5360",
        said="An iterable data set looks at the worker only, not at the rank, and so yields "
        "duplicates under data parallelism.",
        world=2,
    ),
    _case(
        "tram_noise",
        "distributed",
        trigger="the first gradient that overflows on one rank's share alone",
        cause="Each rank's scaler looks for overflows in the gradients that it owns, so one rank "
        "skips a step that the other takes, and their scales part.",
        source="https://github.com/pytorch/pytorch/pull/76918",
        said="With sharded gradients, a scaler must tell the other ranks of an overflow; a sharded "
        "scaler does.",
        world=2,
    ),
    _case(
        "ridge_depths",
        "scheduler",
        trigger="learning rates of step 0",
        cause="The schedule gets one highest rate, which replaces the smaller rate of the "
        "encoder's group.",
        source="https://github.com/shariqfarooq123/AdaBins/issues/44",
        said="Encoder and decoder should have different rates, but one number for the one-cycle "
        "schedule makes them equal; it takes a list.",
    ),
    _case(
        "frost_patterns",
        "ema",
        trigger="weights of step 8",
        cause="After the validation the averaged weights are not taken out of the model, so "
        "training goes on from them.",
        source="https://github.com/PKU-YuanGroup/Open-Sora-Plan/issues/186",
        said="The average is stored and copied into the model for validation and never restored.",
    ),
    _case(
        "court_rulings",
        "freezing",
        trigger="the first batch after the adapters are added",
        cause="The list of modules to train is the None that `append` returns, so the new head "
        "stays frozen at its random values and only gets an adapter.",
        source="https://github.com/huggingface/peft/issues/577",
        said="`modules_to_save` is given the result of `append`, which is None, and the head lands "
        "among the target modules.",
    ),
    _case(
        "lichen_photos",
        "evaluation",
        trigger="backward pass of step 0",
        cause="The recomputation of a block updates the running statistics of its batch norm a "
        "second time in each step.",
        source="https://github.com/pytorch/pytorch/issues/96136",
        said="Batch norms within a checkpointed module are updated twice, as the forward pass runs "
        "twice.",
        differs="validation",
    ),
    _case(
        "alloy_strength",
        "resume",
        trigger="the split at the start of the second session",
        cause="The resumed session splits the data anew, so it trains on examples that were held "
        "out and validates on some that it was trained on.",
        source="https://github.com/aiqm/torchani/issues/443",
        said="The split of the data is made again in every run and not stored, so a test set may "
        "hold data used for training after a restart.",
    ),
    _case(
        "sea_shanties",
        "data",
        trigger="attention of step 0",
        cause="The mask marks what must not be seen, while the fused attention takes it for what "
        "may be seen, so each position sees only the future.",
        source="https://github.com/rasbt/LLMs-from-scratch/issues/1061",
        said="The upper triangle is passed as the boolean mask, but true means to take part, so "
        "future tokens are attended to.",
    ),
    _case(
        "glaze_textures",
        "data",
        trigger="loss of step 0",
        cause="The factor beta is applied to the term that moves the codebook, not to the one that "
        "commits the encoder.",
        source="https://github.com/CompVis/taming-transformers/issues/57",
        said="In the code beta multiplies the second term, but the paper has it at the commitment "
        "loss.",
    ),
    _case(
        "ligand_pairs",
        "data",
        trigger="batch of step 0",
        cause="The edges of the second molecule are not renumbered in a batch, so messages of all "
        "pairs go between the atoms of the first ones.",
        source="https://github.com/pyg-team/pytorch_geometric/issues/1499",
        said="A class of pairs of graphs gives increments for attributes of edges instead of their "
        "indices, so a batch numbers them wrongly.",
    ),
    _case(
        "lantern_keeper",
        "data",
        trigger="loss of step 0",
        cause="Values have one dimension and returns two, so their difference is a square matrix "
        "and each value learns the mean of all returns.",
        source="https://github.com/RLinf/RLinf/issues/1568",
        said="Returns are a column and the values are not, and the critic's loss broadcasts them "
        "to all pairs of the batch.",
    ),
    _case(
        "coral_shapes",
        "data",
        trigger="loss of step 0",
        cause="One is added to the ratio of signal to noise above the fraction bar too, so noisy "
        "levels weigh far too much.",
        source="https://github.com/huggingface/diffusers/issues/5654",
        said="The weight for velocities should cap the ratio and divide it by the ratio plus one; "
        "the scripts add one to both.",
    ),
    _case(
        "grain_sorter",
        "data",
        trigger="loss of the student's first batch",
        cause="The divergence from the teacher is averaged over classes too, so the teacher counts "
        "for a tenth of what it should.",
        source="https://github.com/yuanli2333/Teacher-free-Knowledge-Distillation/issues/41",
        said="The divergence uses the default reduction, which is small because it averages over "
        "all elements; it should be the mean over the batch.",
    ),
    _case(
        "verdict_scores",
        "data",
        trigger="scores of step 0",
        cause="Answers are padded on the left while the score is read where an answer padded on "
        "the right ends, so words at the end are not seen.",
        source="https://github.com/huggingface/trl/issues/2778",
        said="The tokenizer pads on the left, but the reward is read as if padding were on the "
        "right, at the wrong token.",
    ),
)

HEALTHY: tuple[Program, ...] = (
    _program("healthy_deaf_picture_tower", "freezing", "two towers, of which one is frozen"),
    _program("healthy_random_features", "freezing", "random features, L-BFGS and then Adam"),
    _program("healthy_wave_teacher", "ema", "a teacher that is an average, and a growing trust"),
    _program("healthy_dune_replay", "ema", "a replay buffer and slowly moving targets"),
    _program("healthy_patient_codes", "scheduler", "a growing penalty, stopped early, best kept"),
    _program("healthy_counting_verses", "scheduler", "a tied table, ever longer pieces, plateaus"),
    _program("healthy_mean_of_snapshots", "resume", "the mean of the last three snapshots"),
    _program("healthy_paused_bakery", "resume", "two optimizers, stopped within an epoch"),
    _program(
        "healthy_ferry_rounds",
        "distributed",
        "steps of each rank, whose weights and momentum are averaged now and then",
        world=2,
    ),
    _program(
        "healthy_leftover_micro",
        "distributed",
        "DDP with accumulation and a remainder",
        world=2,
    ),
)
