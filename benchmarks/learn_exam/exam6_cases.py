"""The sixth set of the exam: silent mistakes with healthy twins, and healthy programs, as data.

Its writer had read neither the judge nor a program of the other sets but four, which were examples
of their form (`exam_cases.py` describes the fields).  Names and docstrings of the programs say what
they train and which report they follow, and nothing of a mistake.
"""

from __future__ import annotations

from functools import partial

from exam_cases import Case, Program

_case, _program = partial(Case, prefix="exam6"), partial(Program, prefix="exam6")

CASES: tuple[Case, ...] = (
    _case(
        "review_stars",
        "data",
        trigger="loss of step 0",
        cause="The model ends in a softmax and the cross entropy applies another, so scores cannot "
        "part far and gradients are small.",
        source="https://github.com/Lightning-Universe/lightning-bolts/issues/654",
        said="The loss takes a log-softmax of a softmax, which narrows the scores and may harm "
        "training.",
    ),
    _case(
        "postcard_writer",
        "data",
        trigger="labels of step 0",
        cause="The padding token is the end token, and every label that equals it is ignored, so "
        "no loss teaches the model to stop.",
        source="https://github.com/huggingface/transformers/issues/23530",
        said="If the padding token is the end token, the collator ignores all end tokens and not "
        "those of the padding alone.",
    ),
    _case(
        "machine_hum",
        "data",
        trigger="forward pass of step 0",
        cause="The encoder layer expects time first and gets the batch first, so attention mixes "
        "the recordings of a batch and not the times of a recording.",
        source="https://github.com/IBM/TabFormer/pull/14",
        said="The encoder expects the batch in the second dimension and gets it in the first, so "
        "attention is wrong without an error.",
    ),
    _case(
        "coastal_tiles",
        "data",
        trigger="first batch, at step 0",
        cause="Tiles are reshaped to channels first instead of permuted, which mixes places and "
        "colours.",
        source="https://github.com/Selen-Suyue/DensePolicy2D/issues/3",
        said="A reshape of height, width and channels to channels first scrambles the picture; a "
        "permutation is needed.",
    ),
    _case(
        "ice_cores",
        "optimizer",
        trigger="step 5, the first of the second epoch, with a new optimizer",
        cause="Each call of the function for an epoch makes a new Adam, which forgets its moments.",
        source="https://github.com/alan-turing-institute/deepsensor/issues/47",
        said="The function that trains for an epoch makes Adam anew, so what Adam gathered in "
        "earlier epochs is lost.",
    ),
    _case(
        "cough_sounds",
        "scheduler",
        trigger="step 9, the first with a lower rate",
        cause="The plateau scheduler is in the mode for a loss and gets an accuracy, so the rate "
        "falls while the accuracy rises.",
        source="https://github.com/md-mohaiminul/ViS4mer/issues/4",
        said="ReduceLROnPlateau keeps its default mode 'min' although it is given an accuracy.",
    ),
    _case(
        "far_needles",
        "amp",
        trigger="forward pass of step 0",
        cause="The conversion of the model to bfloat16 converts the inverse frequencies of the "
        "rotary embedding too, so far positions get the same angles.",
        source="https://github.com/EleutherAI/gpt-neox/issues/1003",
        said="Rotary embeddings that are computed in the low precision of the model are far from "
        "those in float32 for some positions.",
    ),
    _case(
        "dune_denoiser",
        "ema",
        differs="averaged",
        trigger="end of step 0, where the average moves for the first time",
        cause="The average is kept in bfloat16, where an update by a small share of the difference "
        "is rounded away.",
        source="https://github.com/d8ahazard/sd_dreambooth_extension/pull/1417",
        said="In half precision nearly all updates of the average round to nothing, so it never "
        "changes; it must be float32.",
    ),
    _case(
        "bus_arrivals",
        "evaluation",
        trigger="end of step 6, where the weights are to go back",
        cause="The best state is kept by reference, so it is always the current one and going back "
        "does nothing.",
        source="https://github.com/WenjieDu/PyPOTS/issues/667",
        said="state_dict() returns references, so the best state that is kept changes with every "
        "further update; it must be copied.",
    ),
    _case(
        "clinic_letters",
        "lora",
        trigger="backward pass of step 0",
        cause="Reentrant checkpointing of blocks whose input needs no gradient gives none to the "
        "low-rank additions within, so only the head trains.",
        source="https://github.com/huggingface/transformers/issues/26221",
        said="With reentrant checkpointing an input must require a gradient, or the checkpointed "
        "part has no gradients; low-rank tuning met this.",
    ),
    _case(
        "mineral_spectra",
        "evaluation",
        trigger="step 0, which updates the running statistics",
        cause="The momentum of batch norm is that of another library, the share of the old value, "
        "so running statistics are nearly those of the last batch.",
        source="https://github.com/pytorch/vision/issues/8250",
        said="The momentum was copied from a TensorFlow implementation; PyTorch needs one minus "
        "that value.",
    ),
    _case(
        "tall_tower",
        "data",
        trigger="backward pass of step 0",
        cause="Checkpointing does not keep the state of the random generator, so the backward pass "
        "computes with other dropout masks than the forward pass.",
        source="https://github.com/ankanbhunia/PIDM/pull/66",
        said="With dropout and preserve_rng_state=False gradients flow to the wrong cells, and the "
        "training of 300 epochs failed.",
    ),
    _case(
        "rowing_agent",
        "data",
        trigger="step 0, whose targets count the end of time as an end",
        cause="Episodes that the time limit cuts are stored as terminated, so values after the cut "
        "are taken as zero.",
        source="https://github.com/Toni-SM/skrl/issues/449",
        said="States at a time limit are handled as terminal and their future value as zero, which "
        "undervalues every state near the limit.",
    ),
    _case(
        "sound_captions",
        "distributed",
        world=2,
        trigger="loss of step 0 on rank 1",
        cause="Captions are gathered from all ranks and labels count from 0 on each, so the second "
        "rank pairs its sounds with the captions of the first.",
        source="https://github.com/galilai-group/stable-pretraining/pull/409",
        said="Both sides are gathered over ranks but the targets stay those of one rank's batch; "
        "accuracy stays lower.",
    ),
    _case(
        "coarse_weights",
        "distributed",
        world=2,
        zero="apart",
        trigger="end of step 0, which updates the scales by local gradients",
        cause="Parameters that fully_shard is told to ignore get no reduction of gradients, so "
        "their copies part.",
        source="https://github.com/BrotherHappy/OSTQuant/issues/15",
        said="All trained parameters are in ignored modules, whose gradients FSDP does not "
        "synchronise.",
    ),
    _case(
        "column_plan",
        "distributed",
        world=2,
        trigger="first batch, at step 0",
        cause="The sampler gives each rank its own rows as if ranks were replicas, but they split "
        "one model and must read the same rows.",
        source="https://github.com/huggingface/accelerate/issues/3092",
        said="After prepare, processes of one data-parallel rank read different rows, which is "
        "wrong where they share a model.",
    ),
    _case(
        "twin_halves",
        "initialisation",
        world=2,
        trigger="construction, before step 0",
        cause="Both ranks draw their halves of split weights with the same seed, so the halves are "
        "equal and stay equal.",
        source="https://github.com/modelscope/ms-swift/pull/7944",
        said="Weights that tensor parallelism splits must not be initialised with one seed on all "
        "ranks.",
    ),
    _case(
        "river_levels",
        "data",
        world=2,
        trigger="first batch of rank 1, at step 0",
        cause="Each rank shuffles with its own seed before it takes its share, so shares overlap "
        "and some gauges are left out.",
        source="https://github.com/karpathy/llm.c/issues/792",
        said="The seed of the shuffle depends on the rank, so permutations differ and ranks may "
        "load overlapping data.",
    ),
    _case(
        "staged_forecast",
        "clipping",
        world=2,
        trigger="end of step 0, where gradients are clipped",
        cause="Each stage clips by the norm of its own gradients and not by that of the model.",
        source="https://github.com/pytorch/torchtitan/issues/596",
        said="With pipeline parallelism the norm is computed from one stage's parameters alone; it "
        "must be reduced over stages.",
    ),
    _case(
        "resumed_sketches",
        "resume",
        world=2,
        trigger="step 14, the first after the resume",
        cause="Every rank loads the random state of rank 0, so both draw the same rows and noise "
        "from then on.",
        source="https://github.com/radixark/miles/pull/3187",
        said="Checkpoints keep the random state of rank 0 and restore it on every rank, which "
        "changes the random streams of the others.",
    ),
)

HEALTHY: tuple[Program, ...] = (
    _program("healthy_gradient_surgery", "general", "gradients of two tasks, made not to conflict"),
    _program("healthy_lazy_penalty", "optimizer", "a GAN with a penalty now and then, two to one"),
    _program("healthy_soft_actor", "optimizer", "rollouts, three optimizers and slow critics"),
    _program("healthy_hidden_patches", "scheduler", "masked patches, tied weights, warm restarts"),
    _program("healthy_centred_teacher", "ema", "a teacher that is an average, and a centre"),
    _program("healthy_orthogonal_steps", "optimizer", "Muon and a signed momentum, own gradients"),
    _program("healthy_rounded_halves", "amp", "bfloat16 weights that are rounded at random"),
    _program(
        "healthy_preferred_answers",
        "accumulation",
        "preferences against a frozen reference, uneven micro-batches, evaluation in between",
    ),
    _program(
        "healthy_outer_nesterov",
        "distributed",
        "local steps, and an outer optimizer every fifth step",
        world=2,
    ),
    _program(
        "healthy_compressed_replicas",
        "distributed",
        "DDP with a compressing hook and ZeroRedundancyOptimizer",
        world=2,
    ),
)
