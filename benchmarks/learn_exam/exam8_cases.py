"""The eighth set of the exam: silent mistakes with healthy twins, and healthy programs, as data.

Its writer had read neither the judge nor a program of the other sets but three, which were examples
of their form (`exam_cases.py` describes the fields).  Names and docstrings of the programs say what
they train and which report they follow, and nothing of a mistake.
"""

from __future__ import annotations

from functools import partial

from exam_cases import Case, Program

_case, _program = partial(Case, prefix="exam8"), partial(Program, prefix="exam8")

CASES: tuple[Case, ...] = (
    _case(
        "weir_flow",
        "distributed",
        trigger="forward pass of the first step after the split",
        cause="The fused projection of gate and value is split in one piece, so one rank gets all "
        "of the gate and the other all of the value, and each pairs its rows wrongly.",
        source="https://github.com/NVIDIA/Megatron-LM/issues/360",
        said="With tensor parallelism a rank splits its part of the fused layer into gate and "
        "value, although the part belongs to only one of them.",
        world=2,
    ),
    _case(
        "bell_melodies",
        "distributed",
        trigger="gradients of step 1",
        cause="The places for received states are reused and their gradients never cleared, so the "
        "first stage gets the sum of the gradients of all steps so far.",
        source="https://github.com/allenai/OLMo-core/pull/749",
        said="The slot of a received activation keeps its gradient; the next batch adds to it and "
        "sends the sum upstream.",
        world=2,
    ),
    _case(
        "long_ledgers",
        "distributed",
        trigger="forward pass of step 0",
        cause="Each rank numbers the places of its part of the sequence from zero, so the second "
        "rank's entries have the places of the first rank's.",
        source="https://github.com/vllm-project/speculators/pull/871",
        said="With a split sequence the default position ids count the local length, without the "
        "offset of the rank.",
        world=2,
    ),
    _case(
        "peat_layers",
        "distributed",
        trigger="clipping of step 0",
        cause="Each rank clips its part of the gradient by the norm of that part alone, so parts "
        "are scaled differently and less than they should be.",
        source="https://github.com/pytorch/pytorch/issues/72548",
        said="With sharded parameters a rank sees a part of the gradients, and clipping by its "
        "norm is wrong.",
        world=2,
    ),
    _case(
        "kite_paths",
        "distributed",
        trigger="noise and times of step 0",
        cause="All ranks set the same seed, so they draw the same noise and the same times for "
        "their different paths in each step.",
        source="https://github.com/Robbyant/lingbot-vla-v2/issues/41",
        said="The seed is the same on every rank, and so are the noise and the time steps of flow "
        "matching, at every step.",
        world=2,
    ),
    _case(
        "herb_recipes",
        "distributed",
        trigger="gradients of step 0",
        cause="The loss is divided by the number of tokens of all ranks, and the sharding averages "
        "gradients once more, so they are too small by the number of ranks.",
        source="https://github.com/ChenmienTan/RL2/issues/11",
        said="A sum that is divided by the total number over devices has to be multiplied by their "
        "number, since the gradients are averaged over them.",
        world=2,
    ),
    _case(
        "post_sorting",
        "distributed",
        trigger="biases of the experts after step 0",
        cause="Each rank evens out the experts by the work of its own letters, so the biases of "
        "the ranks part and they choose experts by different rules.",
        source="https://github.com/pytorch/torchtitan/pull/1114",
        said="The numbers of tokens per expert are summed over all data-parallel ranks before the "
        "bias is updated.",
        world=2,
    ),
    _case(
        "riddle_endings",
        "data",
        trigger="labels of step 0",
        cause="The sign of the end is also the padding, and all padding is hidden from the labels, "
        "so the model never learns to stop.",
        source="https://github.com/huggingface/transformers/issues/23530",
        said="With the end token as padding token, all end tokens of the labels become -100 and "
        "not only those that pad.",
    ),
    _case(
        "buoy_pilot",
        "data",
        trigger="returns of step 0",
        cause="The end of the watch is treated like the loss of the buoy: the value of what would "
        "have come is left out of the returns.",
        source="https://github.com/anthonytorlucci/rlevo/issues/170",
        said="Only true termination should zero the bootstrap; doing it at a time limit biases "
        "values down.",
    ),
    _case(
        "pebble_forger",
        "data",
        trigger="gradients of the critic in step 0",
        cause="The slope is computed without a graph, so its penalty is a number without a "
        "gradient and the critic is not kept smooth.",
        source="https://github.com/ooples/AiDotNet/issues/1844",
        said="The gradient penalty has a value but does not reach the discriminator's weights, as "
        "no graph of the inner gradient is made.",
    ),
    _case(
        "leaf_views",
        "data",
        trigger="loss of step 0",
        cause="The two views are joined along the features, so the halves that the loss pairs are "
        "different leaves.",
        source="https://github.com/Guanzhou-Ke/conan/issues/3",
        said="The projections are joined along the last dimension, and the loss then compares the "
        "first half of the batch with the second.",
    ),
    _case(
        "crab_joints",
        "data",
        trigger="joints of the first mirrored picture",
        cause="A mirrored picture keeps the names of its joints, so what is on the left is called "
        "right.",
        source="https://github.com/robertklee/COCO-Human-Pose/pull/29",
        said="After a flip a right wrist is a left wrist, which the augmentation does not account "
        "for.",
    ),
    _case(
        "twin_gauges",
        "amp",
        trigger="the second optimizer's step in step 2, in which the scale grows",
        cause="The scaler is updated after each optimizer, so gradients of the second are divided "
        "by another scale than they were multiplied with, and the scale changes twice as often.",
        source="https://github.com/huggingface/accelerate/issues/439",
        said="With two optimizers the scaler is updated twice in a step, although it should be "
        "once, after both.",
    ),
    _case(
        "fog_horns",
        "scheduler",
        trigger="the third epoch, after two in which the accuracy did not fall",
        cause="The schedule waits for an accuracy that falls, so it lowers the rate while the "
        "network still gets better.",
        source="https://github.com/md-mohaiminul/ViS4mer/issues/4",
        said="ReduceLROnPlateau looks for a minimum by default, but is given an accuracy.",
    ),
    _case(
        "moss_tuning",
        "optimizer",
        trigger="learning rates of step 0",
        cause="Layers of the frozen copy count as layers above the others, so all rates are "
        "smaller than they should be by powers of the decay.",
        source="https://github.com/huggingface/pytorch-image-models/issues/2691",
        said="With parameters that need no gradient, the scales of the layer-wise decay do not "
        "match the layers.",
    ),
    _case(
        "swell_forecast",
        "ema",
        trigger="the first update of the average in the second session",
        cause="The number of updates is not in the checkpoint, so the memory of the average starts "
        "short again and the raw weights replace it.",
        source="https://github.com/lightly-ai/lightly-train/pull/892",
        said="The count of updates is reset when training resumes, so the warm-up of the decay "
        "starts again and almost overwrites the average.",
    ),
    _case(
        "dialect_adapters",
        "lora",
        trigger="forward pass of the first step of the second session",
        cause="The second session loads the matrices of the adapters and not their alpha, so they "
        "add a fourth of what they were trained to.",
        source="https://github.com/KadoBOT/ComfyUI-YuE2-Voices/issues/17",
        said="Retraining copies both matrices of an adapter and never reads alpha, so the update "
        "has another scale.",
    ),
    _case(
        "brine_density",
        "resume",
        trigger="the first step after the first round",
        cause="The best state is a reference to the weights and not a copy, so the last weights "
        "take the place of the best.",
        source="https://github.com/pytorch/tutorials/pull/188",
        said="Without a deep copy the best weights always change to those of the last epoch.",
    ),
    _case(
        "rare_calls",
        "data",
        trigger="batch of step 0",
        cause="The sampler gets a weight for each bird instead of each call, so only the first "
        "four calls are ever drawn.",
        source="https://github.com/deep-voice/soundbay/pull/49",
        said="The weighted sampler takes a weight per sample; with one per class it draws the "
        "first samples again and again.",
    ),
    _case(
        "glass_faults",
        "data",
        trigger="loss of step 0",
        cause="The cross-entropy is averaged before its focal factor, so all panes of a batch have "
        "the same factor and hard ones weigh no more.",
        source="https://github.com/foamliu/InsightFace-v2/pull/39",
        said="The default reduction of the entropy makes the focal weight one scalar of the batch, "
        "without a weight per sample.",
    ),
)

HEALTHY: tuple[Program, ...] = (
    _program("healthy_slow_harbour", "optimizer", "weights that are drawn back to slow ones"),
    _program("healthy_private_census", "clipping", "limits for each example, and noise"),
    _program("healthy_reborn_units", "initialisation", "silent units that are drawn anew"),
    _program("healthy_hooked_updates", "optimizer", "updates within the backward pass"),
    _program("healthy_dropped_blocks", "evaluation", "blocks that are left out at random"),
    _program("healthy_new_tides", "scheduler", "cycles with a new optimizer each"),
    _program("healthy_fresh_statistics", "ema", "an average whose statistics are taken anew"),
    _program("healthy_evolved_gait", "optimizer", "gradients by trial, without a backward pass"),
    _program(
        "healthy_split_vocabulary",
        "distributed",
        "a vocabulary that is split over ranks, with a tied table",
        world=2,
    ),
    _program(
        "healthy_local_heads",
        "distributed",
        "a trunk that the ranks share, and heads that they do not",
        world=2,
    ),
)
