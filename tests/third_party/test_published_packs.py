"""The shipped packs of invariants report no violation in training loops of other projects."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from pytest_trainsafe import assert_invariants, observe
from pytest_trainsafe.judges.learn.check.offline import check
from pytest_trainsafe.judges.learn.registry import relations
from pytest_trainsafe.judges.learn.run import ObservedRun
from pytest_trainsafe.judges.learn.use.deploy import load_packs
from tests.support.third_party import (
    accelerate_ddp,
    fsdp_llama,
    lightning_ddp,
    transformers_ddp,
    transformers_tp,
)
from tests.support.third_party.lane import needs_packages
from tests.support.third_party.published_loops import LOOPS

pytestmark = needs_packages


@pytest.mark.filterwarnings("default")  # the projects emit warnings
@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
def test_a_published_loop_keeps_the_invariants_of_the_packs(loop: Callable[[], None]) -> None:
    torch.manual_seed(11)
    with observe() as observation:
        loop()

    assert_invariants(observation, "pytorch", "amp")
    known = relations()
    packs = load_packs(["pytorch"], Path.cwd(), known)
    checked = check(ObservedRun("", [observation.table]), packs, known)
    assert len(checked.triggered) >= 10, checked.not_checked.sentences()


@pytest.mark.trainsafe(transformers_ddp.train, dp=2, dtype="float32")
def test_gpt2_under_ddp_keeps_the_invariants_of_the_packs(candidate_trace) -> None:
    assert_invariants(candidate_trace, "pytorch", "ddp")


@pytest.mark.slow
@pytest.mark.trainsafe(accelerate_ddp.train, dp=2, dtype="float32")
def test_accelerate_under_ddp_keeps_the_invariants_of_the_packs(candidate_trace) -> None:
    assert_invariants(candidate_trace, "pytorch", "ddp")


@pytest.mark.slow
@pytest.mark.trainsafe(lightning_ddp.train, dp=2, dtype="float32")
def test_lightning_under_ddp_keeps_the_invariants_of_the_packs(candidate_trace) -> None:
    assert_invariants(candidate_trace, "pytorch", "ddp")


@pytest.mark.slow
@pytest.mark.trainsafe(fsdp_llama.train, dp=2, dtype="float32")
def test_llama_under_fsdp_keeps_the_invariants_of_the_packs(candidate_trace) -> None:
    assert_invariants(candidate_trace, "pytorch", "fsdp")


@pytest.mark.slow
@pytest.mark.trainsafe(transformers_tp.train, tp=2, dtype="float32")
def test_transformers_tensor_parallelism_keeps_the_invariants_of_the_packs(candidate_trace) -> None:
    assert_invariants(candidate_trace, "pytorch", "tensor_parallel")
