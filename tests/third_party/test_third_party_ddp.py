"""Programs under DistributedDataParallel, by hand and by the frameworks that wrap it.

Each program passes as it is.  Of each planted fault the first tensor, what it is, and the line to
look at are asserted together: a localisation takes longer than the test's own Runs.
"""

from __future__ import annotations

import accelerate_ddp
import lightning_ddp
import pytest
import resnet_ddp
import synchronised_ddp
import transformers_ddp
from lane import failure, judge, line_of, needs_packages, starts

pytestmark = [needs_packages, pytest.mark.slow]

MOE = {"model": "qwen2_moe"}
GROUPED = {"model": "qwen2_moe, grouped"}
ONE = {"steps": 1}

#: The samples of a batch are cut over dp, and so is what every module makes of them.
CUT = {"modules": {"*": {"output": {"dp_dim": 0}}}}

#: What is said of a loss that is divided for the whole step, where the wrapper averages too.
TWICE = (
    "the value is 0.5 times the reference, a factor of 1/dp so it is divided by dp once too often"
)

#: What is said of gradients that a wrapper does not reduce.
UNREDUCED = "so an average over dp is missing for this gradient"

BACKWARD = "(loss / divisor).backward()"
WRAPPER = 'return DistributedDataParallel(network, process_group=ctx.group("dp"))'


def differentiated(program: str) -> str:
    return f"the loss that {program}.train differentiates is wrong, outside of the model"


@pytest.mark.trainsafe(
    transformers_ddp.train,
    dp=2,
    dtype="float32",
    wrapper=["DistributedDataParallel", "replicate", "replicate_with_fsdp"],
)
def test_gpt2_passes(candidate_trace, reference_trace):
    judge(candidate_trace, reference_trace)


@pytest.mark.trainsafe(transformers_ddp.train, dp=2, dtype="float64", args=ONE)
def test_gpt2_with_a_loss_divided_twice(candidate_trace, reference_trace, localizing):
    text = failure(candidate_trace, reference_trace, fault="divided twice")
    first = "output.loss · activation_grad · step 0 · micro-batch 0"
    at = starts(text, first, TWICE, differentiated("transformers_ddp"))
    assert at == line_of(transformers_ddp, BACKWARD)


@pytest.mark.trainsafe(transformers_ddp.train, dp=2, dtype="float64", args=ONE)
def test_gpt2_that_is_never_synchronised(candidate_trace, reference_trace, localizing):
    text = failure(candidate_trace, reference_trace, fault="never synchronised")
    at = starts(text, "transformer.wte.weight · unclipped_grad · step 0", UNREDUCED)
    assert at == line_of(transformers_ddp, WRAPPER)


@pytest.mark.trainsafe(transformers_ddp.train, dp=2, dtype="float32", args=MOE)
def test_qwen2_moe_passes(candidate_trace, reference_trace):
    judge(candidate_trace, reference_trace)


@pytest.mark.trainsafe(transformers_ddp.train, dp=2, dtype="float32", args=GROUPED)
def test_qwen2_moe_with_grouped_matrix_products_passes(candidate_trace, reference_trace):
    judge(candidate_trace, reference_trace)


@pytest.mark.trainsafe(transformers_ddp.train, dp=2, dtype="float32", args={**MOE, **ONE})
def test_qwen2_moe_with_a_loss_divided_twice(candidate_trace, reference_trace, localizing):
    text = failure(candidate_trace, reference_trace, fault="divided twice")
    first = "output.loss · activation_grad · step 0 · micro-batch 0"
    at = starts(text, first, TWICE, differentiated("transformers_ddp"))
    assert at == line_of(transformers_ddp, BACKWARD)


@pytest.mark.trainsafe(transformers_ddp.train, dp=2, dtype="float32", args={**MOE, **ONE})
def test_qwen2_moe_that_is_never_synchronised(candidate_trace, reference_trace, localizing):
    text = failure(candidate_trace, reference_trace, fault="never synchronised")
    at = starts(text, "model.embed_tokens.weight · unclipped_grad · step 0", UNREDUCED)
    assert at == line_of(transformers_ddp, WRAPPER)


@pytest.mark.trainsafe(accelerate_ddp.train, dp=2, dtype="float32")
def test_accelerate_passes(candidate_trace, reference_trace):
    judge(candidate_trace, reference_trace)


@pytest.mark.trainsafe(accelerate_ddp.train, dp=2, dtype="float64", args=ONE)
def test_accelerate_with_a_loss_divided_twice(candidate_trace, reference_trace, localizing):
    text = failure(candidate_trace, reference_trace, fault="divided twice")
    first = "output.loss · activation_grad · step 0 · micro-batch 0"
    at = starts(text, first, TWICE, differentiated("accelerate_ddp"))
    assert at == line_of(accelerate_ddp, "accelerator.backward(loss)")


@pytest.mark.trainsafe(accelerate_ddp.train, dp=2, dtype="float64", args=ONE)
def test_accelerate_with_a_step_in_every_microbatch(candidate_trace, reference_trace, localizing):
    """The second micro-batch of rank 0 is number 2: it sees parameters that have moved."""
    text = failure(candidate_trace, reference_trace, fault="every micro-batch")
    first = "transformer.wte.output · activation · step 0 · micro-batch 2"
    moved = "their parameters have changed since the step began, while the reference's have not"
    at = starts(text, first, "transformer.wte, transformer.wpe", moved)
    assert at == line_of(accelerate_ddp, "optimizer.optimizer.step()")


@pytest.mark.trainsafe(lightning_ddp.train, dp=2, dtype="float32")
def test_lightning_passes(candidate_trace, reference_trace):
    judge(candidate_trace, reference_trace)


@pytest.mark.trainsafe(lightning_ddp.train, dp=2, dtype="float64", args=ONE)
def test_lightning_with_a_loss_divided_twice(candidate_trace, reference_trace, localizing):
    """Lightning starts the backward itself, wherever the user calls its Trainer."""
    text = failure(candidate_trace, reference_trace, fault="divided twice")
    first = "network.output.loss · activation_grad · step 0 · micro-batch 0"
    at = starts(text, first, TWICE, differentiated("lightning_ddp"))
    assert at == line_of(lightning_ddp, "trainer.fit(module, DataLoader(dealt, batch_size=None))")


@pytest.mark.trainsafe(lightning_ddp.train, dp=2, dtype="float64", args=ONE)
def test_lightning_with_the_same_data_on_all_ranks(candidate_trace, reference_trace, localizing):
    text = failure(candidate_trace, reference_trace, fault="same data")
    first = "network.transformer.wte.output · activation · step 0 · micro-batch 1"
    same = "ranks 0 and 1 of dp saw the same data"
    at = starts(text, first, same, "the data that lightning_ddp.train passes to its model is wrong")
    assert at == line_of(lightning_ddp, "trainer.fit(module, DataLoader(dealt, batch_size=None))")


@pytest.mark.trainsafe(resnet_ddp.train, dp=2, dtype="float32")
def test_a_residual_network_passes(candidate_trace, reference_trace):
    judge(candidate_trace, reference_trace)


@pytest.mark.trainsafe(resnet_ddp.train, dp=2, dtype="float64", args=ONE)
def test_a_residual_network_with_a_loss_divided_twice(candidate_trace, reference_trace, localizing):
    text = failure(candidate_trace, reference_trace, fault="divided twice")
    first = "classifier.1.output · activation_grad · step 0 · micro-batch 0"
    at = starts(text, first, TWICE, differentiated("resnet_ddp"))
    assert at == line_of(resnet_ddp, BACKWARD)


@pytest.mark.trainsafe(resnet_ddp.train, dp=2, dtype="float64", args=ONE)
def test_a_residual_network_with_a_scaled_rate(candidate_trace, reference_trace, localizing):
    text = failure(candidate_trace, reference_trace, fault="rate")
    first = "resnet.embedder.embedder.convolution.weight · update · step 0"
    twice = "the value is 2 times the reference, a factor of dp"
    at = starts(text, first, twice, "the optimizer's step of all 20 parameters is wrong")
    assert at == line_of(resnet_ddp, "optimizer.step()")


@pytest.mark.trainsafe(resnet_ddp.train, dp=2, dtype="float64", args=ONE)
def test_a_residual_network_with_a_stage_in_evaluation(
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
def test_statistics_of_all_ranks_pass(candidate_trace, reference_trace):
    judge(candidate_trace, reference_trace, annotations=CUT)


@pytest.mark.trainsafe(synchronised_ddp.train, dp=2, dtype="float64", args=ONE)
def test_statistics_of_all_ranks_with_a_loss_divided_twice(
    candidate_trace, reference_trace, localizing
):
    arguments = {"annotations": CUT, "fault": "divided twice"}
    text = failure(candidate_trace, reference_trace, **arguments)
    first = "4.output · activation_grad · step 0 · micro-batch 0"
    at = starts(text, first, TWICE, differentiated("synchronised_ddp"))
    assert at == line_of(synchronised_ddp, BACKWARD)


@pytest.mark.trainsafe(synchronised_ddp.train, dp=2, dtype="float64", args=ONE)
def test_statistics_of_each_ranks_own_samples(candidate_trace, reference_trace, localizing):
    arguments = {"annotations": CUT, "fault": "own statistics"}
    text = failure(candidate_trace, reference_trace, **arguments)
    faulty = "the forward of 1 (class Synchronised): its inputs agree, its output does not"
    at = starts(text, "1.output · activation · step 0 · micro-batch 0", faulty)
    assert at == line_of(synchronised_ddp, "class Synchronised(nn.BatchNorm2d):")


@pytest.mark.trainsafe(synchronised_ddp.train, dp=2, dtype="float64", args=ONE)
def test_the_same_part_of_every_batch_on_all_ranks(candidate_trace, reference_trace, localizing):
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
