"""Programs under DistributedDataParallel, by hand and by the frameworks that wrap it."""

from __future__ import annotations

import accelerate_ddp
import lightning_ddp
import pytest
import resnet_ddp
import synchronised_ddp
import transformers_ddp
from lane import failure, flat, judge, needs_packages

pytestmark = [needs_packages, pytest.mark.slow]

MOE = {"model": "qwen2_moe"}
GROUPED = {"model": "qwen2_moe, grouped"}

#: What is said of a loss that is divided for the whole step, where the wrapper averages too.
TWICE = "the value is 0.5 times the reference, which is 1/dp so it is divided by dp once too often"


def divided_twice(text: str, first: str, program: str) -> None:
    """The loss that the program differentiates is named, with its line."""
    assert f"starts at {first} · activation_grad · step 0 · micro-batch 0" in text
    assert TWICE in text
    assert f"the loss that {program}.train differentiates is wrong, outside of the model" in text
    assert f"{program}.py:" in text.partition("look at")[2]


@pytest.mark.trainsafe(transformers_ddp.train, dp=2, dtype="float32")
def test_gpt2_passes(candidate_trace, reference_trace):
    judge(candidate_trace, reference_trace)


@pytest.mark.trainsafe(transformers_ddp.train, dp=2, dtype="float64")
def test_gpt2_with_a_loss_divided_twice(candidate_trace, reference_trace, localizing):
    text = failure(candidate_trace, reference_trace, fault="divided twice")
    divided_twice(flat(text), "output.loss", "transformers_ddp")


@pytest.mark.trainsafe(transformers_ddp.train, dp=2, dtype="float64")
def test_gpt2_that_is_never_synchronised(candidate_trace, reference_trace):
    text = flat(failure(candidate_trace, reference_trace, fault="never synchronised"))
    assert "starts at transformer.wte.weight · unclipped_grad · step 0" in text
    assert "so an average over dp is missing for this gradient" in text


@pytest.mark.trainsafe(transformers_ddp.train, dp=2, dtype="float64")
def test_a_missing_reduction_names_the_wrapper(candidate_trace, reference_trace, localizing):
    text = flat(failure(candidate_trace, reference_trace, fault="never synchronised"))
    assert "transformers_ddp.py:" in text.partition("look at")[2]


@pytest.mark.trainsafe(transformers_ddp.train, dp=2, dtype="float32", args=MOE)
def test_qwen2_moe_passes(candidate_trace, reference_trace):
    judge(candidate_trace, reference_trace)


@pytest.mark.trainsafe(transformers_ddp.train, dp=2, dtype="float32", args=GROUPED)
def test_qwen2_moe_with_grouped_matrix_products_passes(candidate_trace, reference_trace):
    judge(candidate_trace, reference_trace)


@pytest.mark.trainsafe(transformers_ddp.train, dp=2, dtype="float32", args=MOE)
def test_qwen2_moe_with_a_loss_divided_twice(candidate_trace, reference_trace):
    text = flat(failure(candidate_trace, reference_trace, fault="divided twice", **MOE))
    assert "starts at output.loss · activation_grad · step 0 · micro-batch 0" in text
    assert TWICE in text


@pytest.mark.trainsafe(transformers_ddp.train, dp=2, dtype="float32", args=MOE)
def test_qwen2_moe_that_is_never_synchronised(candidate_trace, reference_trace):
    text = flat(failure(candidate_trace, reference_trace, fault="never synchronised", **MOE))
    assert "starts at model.embed_tokens.weight · unclipped_grad · step 0" in text
    assert "so an average over dp is missing for this gradient" in text


@pytest.mark.trainsafe(accelerate_ddp.train, dp=2, dtype="float32")
def test_accelerate_passes(candidate_trace, reference_trace):
    judge(candidate_trace, reference_trace)


@pytest.mark.trainsafe(accelerate_ddp.train, dp=2, dtype="float64")
def test_accelerate_with_a_loss_divided_twice(candidate_trace, reference_trace, localizing):
    text = failure(candidate_trace, reference_trace, fault="divided twice")
    divided_twice(flat(text), "output.loss", "accelerate_ddp")


@pytest.mark.trainsafe(accelerate_ddp.train, dp=2, dtype="float64")
def test_accelerate_with_a_step_in_every_microbatch(candidate_trace, reference_trace):
    """The second micro-batch of rank 0 is number 2: it sees parameters that have moved."""
    text = flat(failure(candidate_trace, reference_trace, fault="every micro-batch"))
    assert "starts at transformer.wte.output · activation · step 0 · micro-batch 2" in text


@pytest.mark.trainsafe(lightning_ddp.train, dp=2, dtype="float32")
def test_lightning_passes(candidate_trace, reference_trace):
    judge(candidate_trace, reference_trace)


@pytest.mark.trainsafe(lightning_ddp.train, dp=2, dtype="float64")
def test_lightning_with_a_loss_divided_twice(candidate_trace, reference_trace):
    text = flat(failure(candidate_trace, reference_trace, fault="divided twice"))
    assert "starts at network.output.loss · activation_grad · step 0 · micro-batch 0" in text
    assert TWICE in text


@pytest.mark.trainsafe(lightning_ddp.train, dp=2, dtype="float64")
def test_lightning_with_the_same_data_on_all_ranks(candidate_trace, reference_trace):
    text = flat(failure(candidate_trace, reference_trace, fault="same data"))
    first = "starts at network.transformer.wte.output · activation · step 0 · micro-batch 1"
    assert first in text
    assert "ranks 0 and 1 of dp saw the same data" in text


@pytest.mark.trainsafe(resnet_ddp.train, dp=2, dtype="float32")
def test_a_residual_network_passes(candidate_trace, reference_trace):
    judge(candidate_trace, reference_trace)


@pytest.mark.trainsafe(resnet_ddp.train, dp=2, dtype="float64")
def test_a_residual_network_with_a_loss_divided_twice(candidate_trace, reference_trace, localizing):
    text = failure(candidate_trace, reference_trace, fault="divided twice")
    divided_twice(flat(text), "classifier.1.output", "resnet_ddp")


@pytest.mark.trainsafe(resnet_ddp.train, dp=2, dtype="float64")
def test_a_residual_network_with_a_stage_in_evaluation(candidate_trace, reference_trace):
    text = flat(failure(candidate_trace, reference_trace, fault="evaluation"))
    assert (
        "starts at resnet.encoder.stages.1.layers.0.layer.0.normalization.output · activation · "
        "step 0 · micro-batch 2"
    ) in text


@pytest.mark.trainsafe(synchronised_ddp.train, dp=2, dtype="float32")
def test_statistics_of_all_ranks_pass(candidate_trace, reference_trace):
    cut = {"modules": {"*": {"output": {"dp_dim": 0}}}}
    judge(candidate_trace, reference_trace, annotations=cut)
