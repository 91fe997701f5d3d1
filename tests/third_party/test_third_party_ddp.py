"""Programs under DistributedDataParallel, used directly and by the frameworks that wrap it.

Each program passes without a fault.  A fault is located if its report names the first wrong tensor,
the cause and the source line.  One test asserts all three, because localization is slow.
"""

from __future__ import annotations

import pytest

from tests.support.third_party import (
    accelerate_ddp,
    lightning_ddp,
    resnet_ddp,
    synchronised_ddp,
    transformers_ddp,
)
from tests.support.third_party.lane import failure, judge, line_of, needs_packages, starts

pytestmark = [needs_packages, pytest.mark.slow]

MOE = {"model": "qwen2_moe"}
GROUPED = {"model": "qwen2_moe, grouped"}
ONE = {"steps": 1}

#: The samples of a batch are sharded over dp, and so are the outputs of every module.
CUT = {"modules": {"*": {"output": {"dp_dim": 0}}}}

#: The report on a loss that is divided for the whole step, though the wrapper averages as well.
TWICE = (
    "the value is 0.5 times the reference, a factor of 1/dp so it is divided by dp once too often"
)

#: The same on a loop that divides once more at dp=1 too, so dp is not blamed.
BY_CHANCE = (
    "the value is 0.5 times the reference, which equals 1/dp by chance: the fault occurs without "
    "it too"
)

#: The report on gradients that a wrapper does not reduce.
UNREDUCED = "so an average over dp is missing for this gradient"

BACKWARD = "(loss / divisor).backward()"
NO_SYNC = "return contextlib.nullcontext() if now else wrapped.no_sync()"


def differentiated(program: str) -> str:
    return f"the loss that {program}.train differentiates is wrong, outside of the model"


@pytest.mark.trainsafe(
    transformers_ddp.train,
    dp=2,
    dtype="float32",
    wrapper=["DistributedDataParallel", "replicate", "replicate_with_fsdp"],
)
def test_gpt2_passes_under_each_data_parallel_wrapper(candidate_trace, reference_trace):
    judge(candidate_trace, reference_trace)


@pytest.mark.trainsafe(transformers_ddp.train, dp=2, dtype="float64", args=ONE)
def test_a_loss_divided_twice_is_located_in_gpt2(candidate_trace, reference_trace, localizing):
    text = failure(candidate_trace, reference_trace, fault="divided twice")
    first = "output.loss · activation_grad · step 0 · micro-batch 0"
    at = starts(text, first, TWICE, differentiated("transformers_ddp"))
    assert at == line_of(transformers_ddp, BACKWARD)


@pytest.mark.trainsafe(transformers_ddp.train, dp=2, dtype="float64", args=ONE)
def test_missing_gradient_synchronisation_is_located_in_gpt2(
    candidate_trace, reference_trace, localizing
):
    text = failure(candidate_trace, reference_trace, fault="never synchronised")
    at = starts(text, "transformer.wte.weight · unclipped_grad · step 0", UNREDUCED)
    assert at == line_of(transformers_ddp, NO_SYNC)


@pytest.mark.trainsafe(transformers_ddp.train, dp=2, dtype="float32", args=MOE)
def test_qwen2_moe_passes_under_ddp(candidate_trace, reference_trace):
    judge(candidate_trace, reference_trace)


@pytest.mark.trainsafe(transformers_ddp.train, dp=2, dtype="float32", args=GROUPED)
def test_qwen2_moe_with_grouped_matrix_products_passes_under_ddp(candidate_trace, reference_trace):
    judge(candidate_trace, reference_trace)


@pytest.mark.trainsafe(transformers_ddp.train, dp=2, dtype="float32", args={**MOE, **ONE})
def test_a_loss_divided_twice_is_located_in_qwen2_moe(candidate_trace, reference_trace, localizing):
    text = failure(candidate_trace, reference_trace, fault="divided twice")
    first = "output.loss · activation_grad · step 0 · micro-batch 0"
    at = starts(text, first, TWICE, differentiated("transformers_ddp"))
    assert at == line_of(transformers_ddp, BACKWARD)


@pytest.mark.trainsafe(transformers_ddp.train, dp=2, dtype="float32", args={**MOE, **ONE})
def test_missing_gradient_synchronisation_is_located_in_qwen2_moe(
    candidate_trace, reference_trace, localizing
):
    text = failure(candidate_trace, reference_trace, fault="never synchronised")
    at = starts(text, "model.embed_tokens.weight · unclipped_grad · step 0", UNREDUCED)
    assert at == line_of(transformers_ddp, NO_SYNC)


@pytest.mark.trainsafe(accelerate_ddp.train, dp=2, dtype="float32")
def test_a_program_of_accelerate_passes(candidate_trace, reference_trace):
    judge(candidate_trace, reference_trace)


@pytest.mark.trainsafe(accelerate_ddp.train, dp=2, dtype="float64", args=ONE)
def test_a_loss_divided_twice_is_located_under_accelerate(
    candidate_trace, reference_trace, localizing
):
    text = failure(candidate_trace, reference_trace, fault="divided twice")
    first = "output.loss · activation_grad · step 0 · micro-batch 0"
    at = starts(text, first, BY_CHANCE, differentiated("accelerate_ddp"))
    assert at == line_of(accelerate_ddp, "loss = loss / accelerator.gradient_accumulation_steps")


@pytest.mark.trainsafe(accelerate_ddp.train, dp=2, dtype="float64", args=ONE)
def test_an_optimizer_step_per_micro_batch_is_located_under_accelerate(
    candidate_trace, reference_trace, localizing
):
    """The second micro-batch of rank 0 has number 2, and is computed with updated parameters."""
    text = failure(candidate_trace, reference_trace, fault="every micro-batch")
    first = "transformer.wte.output · activation · step 0 · micro-batch 2"
    moved = "their parameters have changed since the step began, while the reference's have not"
    at = starts(text, first, "transformer.wte, transformer.wpe", moved)
    assert at == line_of(accelerate_ddp, "optimizer.optimizer.step()")


@pytest.mark.trainsafe(lightning_ddp.train, dp=2, dtype="float32")
def test_a_program_of_lightning_passes(candidate_trace, reference_trace):
    judge(candidate_trace, reference_trace)


@pytest.mark.trainsafe(lightning_ddp.train, dp=2, dtype="float64", args=ONE)
def test_a_loss_divided_twice_is_located_under_lightning(
    candidate_trace, reference_trace, localizing
):
    """Lightning calls `backward` itself; the reported line is the one that divides the loss."""
    text = failure(candidate_trace, reference_trace, fault="divided twice")
    first = "network.output.loss · activation_grad · step 0 · micro-batch 0"
    at = starts(text, first, BY_CHANCE, differentiated("lightning_ddp"))
    assert at == line_of(lightning_ddp, 'return loss / share if fault == "divided twice" else loss')


@pytest.mark.trainsafe(lightning_ddp.train, dp=2, dtype="float64", args=ONE)
def test_the_same_data_on_all_ranks_is_located_under_lightning(
    candidate_trace, reference_trace, localizing
):
    text = failure(candidate_trace, reference_trace, fault="same data")
    first = "network.transformer.wte.output · activation · step 0 · micro-batch 1"
    same = "ranks 0 and 1 of dp saw the same data"
    at = starts(text, first, same, "the data that lightning_ddp.train passes to its model is wrong")
    assert at == line_of(lightning_ddp, "trainer.fit(module, DataLoader(dealt, batch_size=None))")


@pytest.mark.trainsafe(resnet_ddp.train, dp=2, dtype="float32")
def test_a_resnet_passes(candidate_trace, reference_trace):
    judge(candidate_trace, reference_trace)


@pytest.mark.trainsafe(resnet_ddp.train, dp=2, dtype="float64", args=ONE)
def test_a_loss_divided_twice_is_located_in_a_resnet(candidate_trace, reference_trace, localizing):
    text = failure(candidate_trace, reference_trace, fault="divided twice")
    first = "classifier.1.output · activation_grad · step 0 · micro-batch 0"
    at = starts(text, first, TWICE, differentiated("resnet_ddp"))
    assert at == line_of(resnet_ddp, BACKWARD)


@pytest.mark.trainsafe(resnet_ddp.train, dp=2, dtype="float64", args=ONE)
def test_a_learning_rate_multiplied_by_dp_is_located_in_a_resnet(
    candidate_trace, reference_trace, localizing
):
    text = failure(candidate_trace, reference_trace, fault="rate")
    first = "resnet.embedder.embedder.convolution.weight · update · step 0"
    twice = "the value is 2 times the reference, a factor of dp"
    at = starts(text, first, twice, "the optimizer's step of all 20 parameters is wrong")
    assert at == line_of(resnet_ddp, "optimizer.step()")


@pytest.mark.trainsafe(resnet_ddp.train, dp=2, dtype="float64", args=ONE)
def test_a_stage_in_evaluation_mode_is_located_in_a_resnet(
    candidate_trace, reference_trace, localizing
):
    text = failure(candidate_trace, reference_trace, fault="evaluation")
    first = (
        "resnet.encoder.stages.1.layers.0.layer.0.normalization.output · activation · step 0 · "
        "micro-batch 2"
    )
    at = starts(text, first, "they run in evaluation mode, and in training mode in the reference")
    switch = "network.resnet.encoder.stages[1].eval()"
    assert at == line_of(resnet_ddp, switch)


@pytest.mark.trainsafe(synchronised_ddp.train, dp=2, dtype="float32")
def test_batch_norm_synchronised_over_dp_passes(candidate_trace, reference_trace):
    judge(candidate_trace, reference_trace, annotations=CUT)


@pytest.mark.trainsafe(synchronised_ddp.train, dp=2, dtype="float64", args=ONE)
def test_a_loss_divided_twice_is_located_with_synchronised_batch_norm(
    candidate_trace, reference_trace, localizing
):
    arguments = {"annotations": CUT, "fault": "divided twice"}
    text = failure(candidate_trace, reference_trace, **arguments)
    first = "4.output · activation_grad · step 0 · micro-batch 0"
    at = starts(text, first, TWICE, differentiated("synchronised_ddp"))
    assert at == line_of(synchronised_ddp, BACKWARD)


@pytest.mark.trainsafe(synchronised_ddp.train, dp=2, dtype="float64", args=ONE)
def test_batch_norm_without_synchronisation_is_located(
    candidate_trace, reference_trace, localizing
):
    arguments = {"annotations": CUT, "fault": "own statistics"}
    text = failure(candidate_trace, reference_trace, **arguments)
    faulty = "the forward of 1 (class Synchronised): given equal inputs, its output differs"
    at = starts(text, "1.output · activation · step 0 · micro-batch 0", faulty)
    assert at == line_of(synchronised_ddp, "class Synchronised(nn.BatchNorm2d):")


@pytest.mark.trainsafe(synchronised_ddp.train, dp=2, dtype="float64", args=ONE)
def test_the_same_part_of_every_batch_on_all_ranks_is_located(
    candidate_trace, reference_trace, localizing
):
    arguments = {"annotations": CUT, "fault": "same part"}
    text = failure(candidate_trace, reference_trace, **arguments)
    part = "rank 1 holds the part of dp rank 0 instead of dp rank 1"
    data = (
        "the data that synchronised_ddp.train passes to its model is wrong; the model is not at "
        "fault"
    )
    at = starts(text, "0.output · activation · step 0 · micro-batch 0", part, data)
    call = "loss = cross_entropy(wrapped(pixels[mine].to(ctx.dtype)), labels[mine])"
    assert at == line_of(synchronised_ddp, call)
