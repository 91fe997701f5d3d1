"""The CNN and the LSTM learn, from the same data in every dtype; dp is their only mesh axis."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest
import torch

from pytest_trainsafe.core.point import Point
from pytest_trainsafe.reference_models import cnn, lstm
from pytest_trainsafe.reference_models.datasets import images
from tests.support.reference_models.rank_double import Job, run_here


@pytest.mark.parametrize(("program", "chance"), [("cnn", 1.39), ("lstm", 5.55)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_cnn_and_the_lstm_learn(program, chance, dtype) -> None:
    run = run_here(
        Job(arguments={"steps": 25, "learning_rate": 1e-2}, dtype=dtype, program=program)
    )

    assert abs(run.loss(0) - chance) < 1.0  # untrained
    assert run.loss(24) < run.loss(0) - 0.2


def test_the_output_and_the_final_states_of_an_lstm_are_recorded(single) -> None:
    tensors = single["lstm"].tensors

    shapes = {
        place: tensors[f"activation lstm{place} 0 0"].shape for place in (".0", ".1.0", ".1.1")
    }
    assert shapes == {".0": (4, 16, 32), ".1.0": (2, 4, 32), ".1.1": (2, 4, 32)}
    assert bool(tensors["activation_grad lstm.0 0 0"].any())
    # The last hidden states of the last layer are its outputs at the end of each sequence.
    assert torch.equal(
        tensors["activation lstm.0 0 0"][:, -1], tensors["activation lstm.1.0 0 0"][1]
    )


def test_images_do_not_depend_on_the_default_dtype() -> None:
    first, kinds = images.batch(5, 8, 16)
    torch.set_default_dtype(torch.float64)
    try:
        again, same_kinds = images.batch(5, 8, 16)
    finally:
        torch.set_default_dtype(torch.float32)

    assert first.dtype == again.dtype == torch.float32
    assert torch.equal(first, again)
    assert torch.equal(kinds, same_kinds)
    assert torch.equal(first.bfloat16().float(), first)
    assert not torch.equal(first, images.batch(6, 8, 16)[0])
    assert not torch.equal(first, images.batch(5, 8, 16, seed=1)[0])


def test_images_of_every_class_occur_and_contain_a_shape() -> None:
    pictures, kinds = images.batch(0, 200, 16)

    assert set(kinds.tolist()) == {0, 1, 2, 3}
    assert bool((pictures.amax(dim=(1, 2, 3)) > 0.75).all())  # brighter than noise alone, by half


@pytest.mark.parametrize("program", [cnn, lstm])
@pytest.mark.parametrize(
    ("point", "reason"),
    [
        (Point.of(tp=2), "this program has no tp; its axes are dp"),
        (Point.of(tp=1, recompute="full"), "this program has no recompute"),
        (Point.of(dp=2, zero=2), "this program has no zero=2"),
        (Point.of(dp=3), "microbatches=4 is not divisible by dp=3"),
        (Point.of(dp=2, tp=1, sp=False, zero=1), None),
    ],
)
def test_the_rules_of_the_cnn_and_the_lstm_refuse_invalid_points_with_a_reason(
    program, point, reason
) -> None:
    parameters = list(inspect.signature(program.train).parameters.values())[1:]
    arguments = {parameter.name: parameter.default for parameter in parameters}

    reasons = [rule(point, arguments) for rule in program.train.trainsafe_rules]

    found = [each for each in reasons if each is not None]
    assert found[0].startswith(reason) if reason else found == [], found


@pytest.mark.parametrize(
    ("program", "arguments", "reason"),
    [
        (cnn, {"channels": 3}, "channels=3 must be even and at least 2"),
        (
            cnn,
            {"channels": 2, "batch_size": 1, "size": 2},
            "size=2 with channels=2 and batch_size=1 leaves one value per group",
        ),
        (cnn, {"channels": 2, "batch_size": 1, "size": 3}, None),
        (cnn, {"channels": 2, "batch_size": 2, "size": 1}, None),
        (lstm, {"vocabulary": 0}, "vocabulary=0 is not from 1 to 256"),
        (lstm, {"vocabulary": 1}, None),
    ],
)
def test_the_rules_of_the_cnn_and_the_lstm_refuse_invalid_sizes_with_a_reason(
    program, arguments, reason
) -> None:
    parameters = list(inspect.signature(program.train).parameters.values())[1:]
    given = {parameter.name: parameter.default for parameter in parameters} | arguments

    reasons = [rule(Point.of(dp=2), given) for rule in program.train.trainsafe_rules]

    found = [each for each in reasons if each is not None]
    assert found[0].startswith(reason) if reason else found == [], found


def test_importing_the_programs_imports_no_torch() -> None:
    code = (
        "import sys; from pytest_trainsafe.reference_models import cnn, lstm; "
        "sys.exit('torch' in sys.modules or 'yaml' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
