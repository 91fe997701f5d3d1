"""A DeepSpeed config is read, completed for a Point, and refused with what to do about it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.errors import SweepError
from pytest_trainsafe.fixtures.deepspeed import deepspeed_program
from pytest_trainsafe.fixtures.deepspeed_config import DeepSpeedConfig, read_config
from pytest_trainsafe.fixtures.deepspeed_keys import DeepSpeedConfigError
from pytest_trainsafe.sweep.marker import read_marker
from pytest_trainsafe.sweep.product import Cell, cells

ADAMW: dict[str, Any] = {"optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}}


def build(width: int = 2) -> Any:
    raise AssertionError("no model is built to collect a test")


def swept(config: Any, **axes: Any) -> list[Cell]:
    """The cells of a test of a program with this config."""
    program = deepspeed_program(config, microbatches=4)(build)
    return cells(read_marker([program], axes), Settings(), lambda *_: None)


def completed(config: DeepSpeedConfig, **changes: Any) -> dict[str, Any]:
    asked = {
        "stage": 2,
        "dtype": "bfloat16",
        "microbatches": 4,
        "dp": 2,
        "tp": 1,
        "clip": True,
        "bucket": 0,
        "overlap_comm": False,
        "offload": False,
        "cpu": True,
    }
    return config.completed(**{**asked, **changes})


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"train_batch_size": 0, **ADAMW}, ["train_batch_size is 0", "integer >= 1"]),
        (
            {"train_batch_size": 10, "train_micro_batch_size_per_gpu": 4, **ADAMW},
            ["train_batch_size 10", "no multiple", "change one of them"],
        ),
        ({"optimizer": {"type": "Adamm"}}, ["'Adamm'", "AdamW", "optimizer=..."]),
        ({"zero_optimization": {"stage": 4}, **ADAMW}, ["stage", "0 to 3"]),
        ({"zero_optimization": True, **ADAMW}, ["zero_optimization is True", "section"]),
        ({}, ["no optimizer", "deepspeed_program(optimizer=...)"]),
        ({"x": object(), **ADAMW}, ["JSON"]),
        ("none.json", ["none.json", "cannot be read"]),
        (3, ["3", "a dict or the path"]),
    ],
)
def test_a_config_that_no_run_could_have_is_refused(config: Any, words: list[str]) -> None:
    with pytest.raises(DeepSpeedConfigError) as refused:
        deepspeed_program(config)(build)

    assert all(word in str(refused.value) for word in words), refused.value


@pytest.mark.parametrize(
    ("config", "axes", "words"),
    [
        (ADAMW, {"dp": 3}, "microbatches=4 is not divisible by dp=3"),
        (
            {"gradient_accumulation_steps": 4, **ADAMW},
            {"dp": 2},
            "gradient_accumulation_steps 4, and microbatches=4 over dp=2 make 2",
        ),
        (
            {"train_batch_size": 8, "train_micro_batch_size_per_gpu": 4, **ADAMW},
            {"microbatches": 4},
            "is 2 micro-batches of 4, not microbatches=4",
        ),
        ({"train_batch_size": 6, **ADAMW}, {"dp": 2}, "6 cannot be cut in microbatches=4"),
        (ADAMW, {"dtype": "float64"}, "master weights in float32"),
        (ADAMW, {"tp": 2, "sp": True}, "no such axis"),
    ],
)
def test_a_contradiction_with_a_point_is_named_when_tests_are_collected(
    config: Any, axes: dict[str, Any], words: str
) -> None:
    with pytest.raises(SweepError, match="no point of this sweep is valid") as refused:
        swept(config, **axes)

    assert words in str(refused.value)


def test_the_batch_sizes_of_a_config_say_how_many_microbatches_a_step_has() -> None:
    config = {"train_batch_size": 8, "train_micro_batch_size_per_gpu": 1, **ADAMW}

    [cell] = swept(config, dp=4)

    assert cell.invalid is None
    assert cell.case.program.complete(cell.case.arguments)["microbatches"] == 8


def test_a_run_has_what_its_point_says_and_keeps_the_rest() -> None:
    zero = {"stage": 1, "round_robin_gradients": True}
    config = read_config({"zero_optimization": zero, "gradient_clipping": 0.5, **ADAMW}, Path())

    done = completed(config, bucket=100, offload=True, overlap_comm=True)

    assert done["zero_optimization"] == {
        "stage": 2,
        "round_robin_gradients": True,
        "reduce_bucket_size": 100,
        "allgather_bucket_size": 100,
        "overlap_comm": True,
        "offload_optimizer": {"device": "cpu"},
    }
    assert done["bf16"] == {"enabled": True}
    assert done["fp16"] == {"enabled": False}
    assert done["gradient_accumulation_steps"] == 2
    assert done["gradient_clipping"] == 0.5
    assert completed(config, clip=False)["gradient_clipping"] == 0.0


def test_both_sides_have_the_same_adam() -> None:
    """DeepSpeed's Adam is AdamW unless told otherwise, and its own has no weight decay."""
    adam = {"type": "Adam", "params": {"lr": 0.1}}
    plain = {"type": "Adam", "params": {"lr": 0.1, "adam_w_mode": False, "torch_adam": True}}

    found, other = (read_config({"optimizer": o}, Path()) for o in (adam, plain))

    assert (found.optimizer, other.optimizer) == ("AdamW", "Adam")
    assert found.optimizer_parameters == {"lr": 0.1, "weight_decay": 0.0}
    assert other.optimizer_parameters == {"lr": 0.1}
    assert completed(found)["optimizer"]["params"]["torch_adam"] is True
    assert completed(found)["optimizer"]["params"]["weight_decay"] == 0.0
    assert "torch_adam" not in completed(found, cpu=False)["optimizer"]["params"]


def test_what_is_auto_is_left_to_the_point(tmp_path: Path) -> None:
    file = tmp_path / "ds.json"
    auto = {"gradient_accumulation_steps": "auto", "bf16": {"enabled": "auto"}}
    file.write_text(json.dumps(auto))

    found = read_config("ds.json", tmp_path)

    assert found.data == {"bf16": {}}
    assert found.file == str(file)


def test_arguments_are_put_over_the_sections_of_a_config() -> None:
    config = read_config({"zero_optimization": {"stage": 1, "reduce_scatter": False}}, Path())

    merged = config.merged({"zero_optimization": {"stage": 3}})

    assert merged.data == {"zero_optimization": {"stage": 3, "reduce_scatter": False}}


def test_a_builder_may_not_have_a_parameter_that_programs_have() -> None:
    def takes_steps(steps: int = 1) -> Any: ...

    with pytest.raises(
        DeepSpeedConfigError, match="parameter 'steps', which deepspeed_program adds"
    ):
        deepspeed_program(ADAMW)(takes_steps)
