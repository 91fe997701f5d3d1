"""The fourth set of the exam: silent mistakes with healthy twins, and healthy programs, as data.

Its writer had read neither the judge nor a program of the other sets but two, which were examples
of their form (`exam_cases.py` describes the fields).  Names and docstrings of the programs say what
they train, and nothing of a mistake.
"""

from __future__ import annotations

from functools import partial

from exam_cases import Case, Program

_case, _program = partial(Case, prefix="exam4"), partial(Program, prefix="exam4")

CASES: tuple[Case, ...] = (
    _case(
        "glucose_forecast",
        "resume",
        trigger="go_back() after epoch 2; step 12 is the first to start from other weights",
        cause="The best weights are kept as the state_dict itself, whose tensors are the live "
        "parameters, so going back to the best epoch changes nothing.",
        source="https://github.com/WenjieDu/PyPOTS/issues/667",
        said="The best model's dict needs a deepcopy, because state_dict() returns references and "
        "the best model keeps being updated.",
        other_size=20,
    ),
    _case(
        "vessel_masks",
        "tying",
        trigger="construction: the branches of all tissues are one module",
        cause="A list with one module is multiplied, so three branches are the same object and "
        "share their weights.",
        source="https://github.com/yaoppeng/U-Net_v2/issues/10",
        said="nn.ModuleList([conv] * 4) holds four references to one convolution, which share "
        "weights; a comprehension makes separate ones.",
    ),
    _case(
        "card_transactions",
        "data",
        trigger="forward pass of step 0, whose attention runs over the payments of the batch",
        cause="The encoder layer is made without batch_first=True, so attention mixes payments and "
        "not the fields of a payment.",
        source="https://github.com/DaoyuanLi2816/Molecule-Generator/pull/22",
        said="With the default batch_first=False, (batch, seq, embed) tensors let self-attention "
        "mix different molecules of the batch.",
    ),
    _case(
        "quiet_student",
        "evaluation",
        differs="wobble",
        zero="wobble",
        trigger="first forward pass of the teacher while the student learns (step 0)",
        cause="The teacher stays in train mode, so its dropout makes the student's targets noisy.",
        source="https://github.com/yxuansu/TaCL/issues/11",
        said="The teacher is not put into eval mode, so dropout gives other results for the same "
        "input; the author agrees.",
    ),
    _case(
        "engine_sounds",
        "optimizer",
        trigger="loss of step 0; weights differ after its optimizer step",
        cause="The divergence from the older model's opinion is averaged over the classes instead "
        "of summed, so this term is 16 times too small beside the noisy labels.",
        source="https://github.com/HikariTJU/LD/issues/74",
        said="kl_div with mean(1) is smaller than the real divergence by the number of classes; "
        "it should be sum(1).",
    ),
    _case(
        "recipe_writer",
        "data",
        trigger="first batch",
        cause="The collate function shifts the labels, and the model shifts them again, so it "
        "learns to predict the word after the next.",
        source="https://github.com/huggingface/transformers/pull/562",
        said="Preprocessing shifted the labels although the model's forward pass does so; the "
        "shift is removed.",
    ),
    _case(
        "lake_crossing",
        "data",
        differs="error",
        trigger="target of the first batch with a walk that is over",
        cause="The targets add the value of the next cell also where the walk is over, so values "
        "of goal and holes leak into the targets.",
        source="https://github.com/navneet-nmk/pytorch-rl/issues/2",
        said="done is not used in the targets of the Q-values; it should mask the next value so "
        "that the target is the reward alone.",
        other_size=16,
    ),
    _case(
        "adapter_reader",
        "lora",
        differs="adapters",
        trigger="backward pass of step 0, which does not reach the adapters",
        cause="Layers are recomputed with the reentrant checkpoint, and the frozen embedding's "
        "output requires no gradient, so adapters inside get none.",
        source="https://github.com/microsoft/LoRA/issues/120",
        said="With gradient checkpointing, all gradients of lora_A and lora_B are None and they "
        "are not updated.",
        other_size=16,
    ),
    _case(
        "gain_tuning",
        "amp",
        differs="moved",
        trigger="optimizer step of step 0, which leaves the gains at 1",
        cause="The gains are kept in bfloat16, where a step of 0.0015 from 1.0 is rounded away.",
        source="https://github.com/vllm-project/speculators/pull/765",
        said="Norm weights stay exactly at 1.0 because training is done fully in bf16, whose step "
        "at 1.0 is larger than the updates; parameters are held in fp32 instead.",
    ),
    _case(
        "leaf_sorter",
        "scheduler",
        differs="rate",
        trigger="scheduler step after epoch 3, before which the accuracy has risen",
        cause="ReduceLROnPlateau watches the accuracy in its default mode 'min', so the rate falls "
        "while the accuracy rises.",
        source="https://github.com/md-mohaiminul/ViS4mer/issues/4",
        said="ReduceLROnPlateau assumes a metric to minimise, and is used for accuracy; the "
        "author did not intend it.",
        other_size=20,
    ),
    _case(
        "cached_tiles",
        "data",
        trigger="first batch of epoch 1 (step 6), whose tiles are normalised a second time",
        cause="Tiles kept in memory are normalised in place, so every epoch normalises them again.",
        source="https://github.com/facebookresearch/pycls/pull/21",
        said="__getitem__ transforms the loaded data in place, so that each call modifies the "
        "dataset for good; a copy fixes it.",
    ),
    _case(
        "cloud_cover",
        "evaluation",
        differs="validation",
        trigger="forward pass of step 0; the first validation, after step 3, shows it",
        cause="The batch norms get the momentum in the sense of Keras, so running statistics are "
        "nearly those of the last batch.",
        source="https://github.com/pytorch/vision/issues/8250",
        said="The momentum 0.99 was taken over from TensorFlow, and should be 1 - momentum in "
        "PyTorch.",
    ),
    _case(
        "thin_network",
        "freezing",
        differs="revived",
        zero="revived",
        trigger="first optimizer step after the mask is made (step 60)",
        cause="Only gradients are masked, and SGD's momentum from before moves removed weights.",
        source="https://github.com/he-y/filter-pruning-geometric-median/issues/47",
        said="The code masks the gradient and not the momentum, so removed weights are revived.",
    ),
    _case(
        "tide_tables",
        "resume",
        trigger="optimizer.load_state_dict before step 40, the first of the second run",
        cause="The second run sorts parameters by name, so floors.10 comes before floors.2 and the "
        "optimizer's state is loaded for other floors.",
        source="https://github.com/pytorch/pytorch/issues/1489",
        said="Optimizer state is matched by the order of parameters and not by name; after a "
        "change of order, states go to the wrong parameters.",
        other_size=20,
    ),
    _case(
        "ward_notes",
        "accumulation",
        differs="norm",
        trigger="optimizer step after micro-batch 0",
        cause="The condition of the step counts from 0, so the first step of an epoch has one "
        "micro-batch of eight, and the last seven of the epoch are dropped.",
        source="https://github.com/rasbt/LLMs-from-scratch/issues/299",
        said="batch_idx % accumulation_steps == 0 steps at the very first batch and does not "
        "handle the last ones; it should be batch_idx + 1.",
    ),
    _case(
        "smooth_sampler",
        "ema",
        differs="averaged",
        trigger="resume before step 80, which starts the average from the live weights",
        cause="The average is not taken from the checkpoint but begins again at the live weights.",
        source="https://github.com/ai2cm/ace/issues/349",
        said="When training stops and resumes, the EMA model is reset to the non-EMA state; it "
        "should be saved and restored.",
        other_size=20,
    ),
    _case(
        "thawed_replicas",
        "freezing",
        world=2,
        differs="gap",
        zero="gap",
        trigger="backward pass of step 10, which does not reduce the trunk's gradients",
        cause="The trunk is thawed after DDP was constructed, which reduces only gradients of "
        "parameters that required one then; replicas drift apart.",
        source="https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html",
        said="Parameters should not be changed after wrapping, because the functions that reduce "
        "gradients are registered for those of the time of construction.",
        other_size=20,
    ),
    _case(
        "halved_layers",
        "data",
        world=2,
        trigger="first batch",
        cause="The loader deals batches by the global rank instead of the data-parallel rank, so "
        "the two processes of a tensor-parallel group compute on different rows.",
        source="https://github.com/pytorch/torchtitan/issues/48",
        said="Ranks of data parallelism should receive different shards, and ranks that share a "
        "model the same shard.",
    ),
    _case(
        "two_stage_writer",
        "tying",
        world=2,
        differs="gap",
        zero="gap",
        trigger="optimizer step of step 0, with the gradient of one use of the table in each stage",
        cause="Gradients of the table that first and last stage share are not summed over the "
        "stages, so its two copies drift apart.",
        source="https://github.com/uw-syfi/piper/issues/13",
        said="Tied embeddings on separate devices are duplicated, and their gradients are not "
        "synchronised before the optimizer step.",
    ),
    _case(
        "sharded_rain",
        "clipping",
        world=2,
        differs="apart",
        zero="apart",
        trigger="clip_ of step 0, which scales the shards by different factors",
        cause="The norm is computed over the local shards alone and not summed over the ranks.",
        source="https://github.com/RLinf/RLinf/pull/1558",
        said="The all-reduce was skipped for every FSDP run, so clipping used the norm of the "
        "shard that the local rank held.",
        other_size=20,
    ),
    _case(
        "long_letters",
        "distributed",
        world=2,
        trigger="forward pass of step 0",
        cause="Places for the rotary encoding start at 0 in every process instead of at the start "
        "of its part of the sequence.",
        source="https://github.com/NVIDIA/Megatron-LM/issues/560",
        said="With a sequence split over ranks, sin and cos of the rotary embedding have to be "
        "those of each rank's positions.",
        other_size=24,
    ),
    _case(
        "turned_shards",
        "distributed",
        world=2,
        differs="apart",
        zero="apart",
        trigger="forward pass of step 0, which returns the partial sum of the own rank",
        cause="The reduction runs on partial.contiguous(), a copy of the transposed tensor, and "
        "the tensor that was not reduced is returned.",
        source="https://github.com/NVIDIA/Megatron-LM/issues/5337",
        said="_reduce all-reduces input.contiguous() and returns the input, which for a "
        "non-contiguous one was never reduced.",
    ),
    _case(
        "wide_columns",
        "initialisation",
        world=2,
        trigger="construction: both ranks draw the same columns",
        cause="Ranks make their columns from the same seed, so the layer holds every column twice "
        "and the two stay equal.",
        source="https://github.com/modelscope/ms-swift/pull/7944",
        said="Tensors split by tensor parallelism must not be initialised from the same seed.",
        other_size=8,
    ),
    _case(
        "token_shares",
        "distributed",
        world=2,
        trigger="backward pass of step 0; the loss differs from step 1",
        cause="The loss is divided by the tokens of all ranks, and FSDP averages gradients over "
        "ranks as well, so they are too small by the number of ranks.",
        source="https://github.com/verl-project/verl-SpeCo/pull/29",
        said="The loss was divided by the global number of tokens and FSDP's mean divided again; "
        "scaling it by the world size cancels that.",
        other_size=20,
    ),
)

HEALTHY: tuple[Program, ...] = (
    _program(
        "healthy_flat_minima", "general", "two backward passes per step, one at a moved point"
    ),
    _program("healthy_hardened_digits", "general", "inputs moved along their own gradient"),
    _program(
        "healthy_weighed_tasks", "general", "three losses with learnt weights, one often absent"
    ),
    _program(
        "healthy_radio_memory", "general", "a detached recurrent state carried between batches"
    ),
    _program("healthy_repeated_layer", "tying", "one layer applied four times on purpose"),
    _program("healthy_warm_snapshots", "scheduler", "restarts of the rate, with a copy at each"),
    _program(
        "healthy_local_rounds",
        "distributed",
        "replicas that step alone for some steps, and then average",
        world=2,
    ),
    _program(
        "healthy_sharded_windows",
        "accumulation",
        "FSDP that reduces gradients at the end of a window only, with a global clip",
        world=2,
    ),
)
