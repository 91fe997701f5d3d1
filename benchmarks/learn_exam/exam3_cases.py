"""The third set of the exam: silent mistakes with healthy twins, and healthy programs, as data.

Its writer had read neither the judge nor a program of the other sets but one, which was the example
of their form (`exam_cases.py` describes the fields).  Names and docstrings of the programs say what
they train, and nothing of a mistake.
"""

from __future__ import annotations

from functools import partial

from exam_cases import Case, Program

_case, _program = partial(Case, prefix="exam3"), partial(Program, prefix="exam3")

CASES: tuple[Case, ...] = (
    _case(
        "whale_calls",
        "data",
        trigger="first batch, which the sampler fills with two recordings",
        cause="WeightedRandomSampler gets a weight for each class instead of one for each "
        "recording, so it draws rows 0 and 1 of the data set alone.",
        source="https://github.com/deep-voice/soundbay/pull/49",
        said="The sampler gives weights to samples and had those of the classes, so it chose the "
        "first and the second sample only; each sample must get the weight of its class.",
    ),
    _case(
        "ticket_triage",
        "data",
        trigger="forward pass of the first step",
        cause="The last states of both directions are viewed as rows of the batch without a "
        "transposition, so each ticket is read with the states of two other tickets.",
        source="https://github.com/graykode/nlp-tutorial/issues/38",
        said="The view shall join both directions of each example, but goes through the states "
        "in another order and mixes examples of the batch.",
    ),
    _case(
        "depth_and_normals",
        "optimizer",
        trigger="optimizer step of step 0; the loss differs from step 1",
        cause="The learned log variances are parameters of the criterion, and the optimizer gets "
        "the parameters of the model alone.",
        source="https://github.com/ifzhang/FairMOT/issues/19",
        said="The parameters of the uncertainty loss were in no optimizer; the author added them.",
    ),
    _case(
        "sharp_images",
        "optimizer",
        trigger="step 10, the first one with a critic; the loss differs from step 11",
        cause="In the second part of training the critic's gradients are computed, but its "
        "optimizer never steps.",
        source="https://github.com/zhaoyuzhi/DeblurGANv2-MobileNetv123-PyTorch/issues/7",
        said="The function that continues training has no step of the discriminators' optimizers, "
        "so they are not updated; the author calls it a mistake.",
    ),
    _case(
        "three_hospitals",
        "optimizer",
        trigger="backward pass of step 0; the loss differs from step 1",
        cause="The gradients that the penalty compares are computed without create_graph, so the "
        "penalty is a constant and changes no gradient.",
        source="https://github.com/facebookresearch/DomainBed/issues/50",
        said="Without create_graph in autograd.grad the penalty has no use: backward of the "
        "penalty alone is an error, and its factor has no effect.",
    ),
    _case(
        "box_finder",
        "scheduler",
        trigger="learning rates of step 0; the loss differs from step 1",
        cause="The warm-up treats group 2 as the group of biases, which is group 0, so the "
        "weights of the norms begin with the high rate and the biases with zero.",
        source="https://github.com/ultralytics/yolov5/issues/8352",
        said="The order of the optimizer's groups had changed, and the warm-up still took number "
        "2 for the biases, whose rate must fall from 0.1.",
    ),
    _case(
        "poem_decoder",
        "amp",
        trigger="optimizer step of step 0, which leaves the weights of the norms at 1",
        cause="The parameters themselves are bfloat16 without a copy in float32, so updates that "
        "are smaller than half the distance to the next number are lost.",
        source="https://github.com/workofart/ml-by-hand/pull/85",
        said="With weights in bfloat16 each update of a weight near 1 was rounded back; after 100 "
        "steps none of 768 weights had moved, and with a float32 copy 603 had.",
    ),
    _case(
        "draft_head",
        "clipping",
        world=2,
        trigger="clipping of step 0; the loss differs from step 1",
        cause="Each rank clips by the norm of its own shards of the gradients, so the bound is "
        "wider and each rank scales by another factor.",
        source="https://github.com/sgl-project/SpecForge/pull/663",
        said="Under FSDP the optimizer clipped by the norm of the rank's shard: too little, and "
        "by another coefficient on each rank; the fix sums the squares over the ranks.",
    ),
    _case(
        "staged_translator",
        "tying",
        world=2,
        trigger="optimizer step of step 0; the loss differs from step 1",
        cause="The first and the last stage hold copies of one embedding, and their gradients are "
        "not summed, so the copies drift apart.",
        source="https://github.com/uw-syfi/piper/issues/13",
        said="Tied embeddings on two devices of a pipeline were duplicated, and their gradients "
        "not synchronized before the optimizer's step.",
        zero="gap",
    ),
    _case(
        "expert_mixer",
        "freezing",
        trigger="forward pass of step 0",
        cause="One expert is chosen for each row and its weight is divided by itself, so it is "
        "always 1 and the gate gets no gradient.",
        source="https://github.com/jingyaogong/minimind/issues/858",
        said="With one expert a token the normalized weight is a constant, and the choice is not "
        "differentiable, so the loss cannot train the router.",
    ),
    _case(
        "cart_balancer",
        "ema",
        trigger="step 8, the first one after the target network is updated for the first time; the "
        "loss differs from step 9",
        cause="After the weights are copied the name of the target is bound to the moving network "
        "itself, so the target follows each step.",
        source="https://github.com/andri27-ts/Reinforcement-Learning/issues/14",
        said="After the parameters are loaded the reference to the target points to the moving "
        "network, which makes the target network useless.",
    ),
    _case(
        "style_adapters",
        "lora",
        trigger="backward pass of step 0; the loss differs from step 1",
        cause="The blocks are checkpointed with use_reentrant, and the frozen embedding's output "
        "requires no gradient, so the adapters within the blocks get none.",
        source="https://github.com/locuslab/open-unlearning/issues/178",
        said="With gradient checkpointing and without enable_input_require_grads the adapters of "
        "the transformer's layers stay zero after training.",
    ),
    _case(
        "ocean_grid",
        "evaluation",
        trigger="backward pass of step 0, which updates the running statistics once more",
        cause="The checkpointed blocks contain BatchNorm, whose running statistics each "
        "recomputation updates a second time.",
        source="https://github.com/m2lines/Samudra/issues/572",
        said="Checkpointing computes each block again in the backward pass, which likely updates "
        "the statistics twice a batch and distorts them.",
        differs="validation",
    ),
    _case(
        "sensor_imputer",
        "evaluation",
        trigger="the load of the best weights at the end of training, which changes nothing",
        cause="state_dict is kept without a copy, so the best weights become the last ones.",
        source="https://github.com/WenjieDu/PyPOTS/issues/667",
        said="state_dict returns references, so the best model keeps getting updated; results "
        "differed between numbers of epochs with the same best epoch.",
        differs="test",
    ),
    _case(
        "two_towers",
        "resume",
        trigger="the first step of the second job (step 20); the loss differs from step 21",
        cause="The second job builds its towers in another order, and the optimizer's state goes "
        "to parameters by position, so the towers exchange their moments.",
        source="https://github.com/pytorch/pytorch/issues/1489",
        said="load_state_dict of an optimizer matches parameters by their order, so with another "
        "order in the model the state of one is loaded for the other.",
    ),
    _case(
        "atom_sets",
        "initialisation",
        trigger="initialisation; the loss differs from step 0",
        cause="The model's own initialisation fills the whole embedding, also the row of "
        "padding_idx, which then is never trained and counts for each padded place.",
        source="https://github.com/microsoft/Graphormer/issues/41",
        said="When the embedding is initialised again, its row 0 is drawn as well, so padding "
        "contributes a vector that is not zero.",
        zero="padding",
    ),
    _case(
        "spam_filter",
        "accumulation",
        trigger="micro-batch 0, after which the optimizer steps; the loss differs from the next",
        cause="The condition tests the number of the batch and not the one of the next, so the "
        "first update has one batch and the last ones of an epoch go into the next epoch.",
        source="https://github.com/rasbt/LLMs-from-scratch/issues/299",
        said="batch_idx % accumulation_steps == 0 makes a step on the very first batch and "
        "treats the last ones wrongly; the author agrees.",
    ),
    _case(
        "bird_finetune",
        "distributed",
        world=2,
        trigger="step 10, the first one with the backbone; the loss differs from step 11",
        cause="The backbone was frozen when DDP was made, which registers trainable parameters "
        "only, so the gradients of the thawed backbone are never averaged.",
        source="https://github.com/Lightning-AI/pytorch-lightning/issues/20340",
        said="Weights are equal on all ranks until the backbone is unfrozen, and go apart from "
        "then on.",
        zero="gap",
    ),
    _case(
        "wide_reader",
        "distributed",
        world=2,
        trigger="optimizer step of step 0; the loss differs from step 1",
        cause="fully_shard is applied to the blocks and not to the root, so the embedding, the "
        "last norm and the head belong to no group and each rank trains its own.",
        source="https://github.com/Tencent-Hunyuan/UniRL/pull/7",
        said="Parameters outside of every fully_shard group stayed plain tensors, whose gradients "
        "had to be synchronized by hand; now the root is wrapped, or such a parameter refused.",
        zero="gap",
    ),
    _case(
        "column_row",
        "distributed",
        world=2,
        trigger="backward pass of step 0; the loss differs from step 1",
        cause="Each rank adds its share of the bias before the sum over ranks, by a division that "
        "is differentiated as well, so the bias gets half of its gradient.",
        source="https://github.com/pytorch/torchtitan/pull/4332",
        said="The division of the bias by the number of ranks also divided its gradient, which "
        "nothing sums over the ranks, so every replica's gradient was too small.",
    ),
)

HEALTHY: tuple[Program, ...] = (
    _program(
        "healthy_vector_codes",
        "general",
        "a code book with a straight-through estimate and a commitment cost",
    ),
    _program(
        "healthy_clipped_policy",
        "general",
        "PPO: several epochs over one rollout, clipped ratios, a falling rate set by hand",
    ),
    _program(
        "healthy_sparse_recommender",
        "optimizer",
        "sparse gradients of two embeddings by SparseAdam, next to Adam for the dense part",
    ),
    _program(
        "healthy_inner_loop",
        "general",
        "MAML: differentiable inner steps with functional_call, of which the outer step learns",
    ),
    _program(
        "healthy_scaled_average",
        "resume",
        "autocast with a GradScaler that grows, an average of weights, and a complete restart",
    ),
    _program(
        "healthy_hinge_pair",
        "general",
        "a GAN with spectral norms, two rates, two critic steps a round, and toggled gradients",
    ),
    _program(
        "healthy_sharded_blocks",
        "clipping",
        "fully_shard of blocks and root, recomputed blocks with dropout, clipping of DTensors",
        world=2,
    ),
    _program(
        "healthy_split_states",
        "distributed",
        "DDP with a static graph and ZeroRedundancyOptimizer over a GRU",
        world=2,
    ),
)
