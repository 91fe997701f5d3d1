"""Loops that users write around the engine train what the plain one does."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import deepspeed_programs
import pytest
import torch

from pytest_trainsafe import assert_trainsafe
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.fixtures.deepspeed.config import DeepSpeedConfig
from pytest_trainsafe.fixtures.deepspeed.loop import LOOPS, loss_annotations, train_steps
from pytest_trainsafe.fixtures.deepspeed.rules import rules
from pytest_trainsafe.record.clock import ProgramError


class Marks:
    """A context of one dp rank of two, which has the first half of a step's micro-batches."""

    point = Point.of(dp=2)

    def microbatches(self, total: int) -> range:
        return range(total // 2)

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        yield

    @contextlib.contextmanager
    def microbatch(self, index: int) -> Iterator[None]:
        yield

    def loss(self, value: torch.Tensor) -> None: ...


class Engine:
    """Writes down what it is asked to do."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __call__(self, value: float) -> torch.Tensor:
        self.calls.append("forward")
        return torch.tensor(value)

    def backward(self, loss: torch.Tensor) -> None:
        self.calls.append(f"backward {float(loss):g}")

    def step(self) -> None:
        self.calls.append("step")

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        self.calls.append("unsynced")
        yield

    def set_gradient_accumulation_boundary(self, is_boundary: bool) -> None:
        self.calls.append(f"boundary {is_boundary}")

    def train_micro_batch_size_per_gpu(self) -> int:
        return 3

    def set_train_batch_size(self, size: int) -> None:
        self.calls.append(f"size {size}")

    def get_global_grad_norm(self) -> None: ...


def calls(loop: str, managed: bool = True, resized: str = "", steps: int = 1) -> list[str]:
    engine, marks = Engine(), Marks()
    train_steps(
        marks,  # type: ignore[arg-type]
        engine,
        lambda step, index: (1.0,),
        lambda loss, given: (loss, loss),
        loop=loop,
        managed=managed,
        microbatches=4,
        steps=steps,
        resized=resized,
    )
    return engine.calls


EXPECTED = {
    "plain": ["forward", "backward 1", "step"] * 2,
    "by_hand": [
        *("boundary False", "forward", "backward 0.5"),
        *("boundary True", "forward", "backward 0.5", "step"),
    ],
    "no_sync": ["unsynced", "forward", "backward 0.5", "forward", "backward 0.5", "step"],
    "discarded": ["forward", *["forward", "backward 1", "step"] * 2],
}


@pytest.mark.parametrize("loop", LOOPS)
def test_a_loop_asks_the_engine_for_what_its_name_says(loop: str) -> None:
    assert calls(loop) == EXPECTED[loop]


def test_an_engine_that_does_not_count_is_stepped_once() -> None:
    assert calls("plain", managed=False) == ["forward", "backward 1"] * 2 + ["step"]


def test_a_resized_training_says_the_size_of_each_step() -> None:
    small = ["size 12", *["forward", "backward 1", "step"] * 2]
    large = ["size 24", *["forward", "backward 1", "step"] * 4]

    assert calls("plain", resized="growing", steps=3) == [*small, *large, *large]
    assert calls("plain", resized="shrinking", steps=3) == [*large, *small, *small]


@pytest.mark.parametrize(
    ("axes", "words"),
    [
        ({"dp": 2, "zero": 2, "loop": "no_sync"}, "stages 0 and 1"),
        ({"pp": 2, "loop": "by_hand"}, "a loop of its own"),
        ({"pp": 2, "resized": "growing"}, "a loop of its own"),
    ],
)
def test_a_loop_that_deepspeed_does_not_have_is_skipped(axes: dict[str, Any], words: str) -> None:
    arguments = {"microbatches": 4, "config": {}}
    found = [rule(Point.of(**axes), arguments) for rule in rules(DeepSpeedConfig({}))]

    assert [why for why in found if why and words in why]


MORE = {"microbatches": 4}


@pytest.mark.trainsafe(deepspeed_programs.client_optimizer, loop="no_sync", zero=1, dp=2, args=MORE)
def test_micro_batches_that_are_not_reduced_one_by_one_train_the_same(
    candidate_trace, reference_trace
):
    pytest.importorskip("deepspeed")
    assert_trainsafe(candidate_trace, reference_trace)


def test_annotations_of_a_file_cannot_be_changed_for_the_documented_loss() -> None:
    own = {"loss": {"mean": ["cp"]}, "cp_order": "contiguous"}

    assert loss_annotations(own, "part") == own
    assert loss_annotations(own, "documented") == {
        "cp_order": "contiguous",
        "gradients": {"mean": ["dp", "cp"]},
    }
    with pytest.raises(ProgramError, match=r"'layouts\.yaml' is a file"):
        loss_annotations("layouts.yaml", "documented")
