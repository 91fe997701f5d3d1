"""The single-device GPT learns, is deterministic, and computes in the dtype of its parameters."""

from __future__ import annotations

import inspect
import subprocess
import sys
from typing import Any

import pytest
import torch

from pytest_trainsafe.core.point import Point
from pytest_trainsafe.reference_models import gpt
from pytest_trainsafe.reference_models.config import GPTConfig
from pytest_trainsafe.reference_models.networks.gpt import GPT
from pytest_trainsafe.reference_models.parallel.apply import parallel_gpt
from pytest_trainsafe.reference_models.parallel.axes import Axes, Axis
from tests.support.reference_models.rank_double import Double, Job, run_here


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_gpt_learns(dtype) -> None:
    run = run_here(Job(arguments={"steps": 20, "learning_rate": 1e-2}, dtype=dtype))

    assert 5.3 < run.loss(0) < 6.2  # untrained, so near ln 256 = 5.55
    assert run.loss(19) < run.loss(0) - 1.0


def test_two_runs_are_bitwise_equal(single) -> None:
    again = run_here(Job()).tensors

    assert list(again) == list(single["default"].tensors)
    assert all(torch.equal(again[key], value) for key, value in single["default"].tensors.items())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_outputs_have_the_dtype_of_the_parameters_and_losses_at_least_float32(dtype) -> None:
    model = GPT(GPTConfig(layers=1)).to(dtype)
    seen = {}
    for name, module in model.named_modules():
        module.register_forward_hook(lambda _m, _a, out, name=name: seen.update({name: out.dtype}))
    tokens = torch.zeros(1, 8, dtype=torch.int64)

    losses = model(tokens, torch.arange(8)[None], tokens)

    assert losses.dtype == torch.promote_types(dtype, torch.float32)
    assert all(seen[name] == dtype for name in seen if name not in ("", "cross_entropy"))


def test_losses_do_not_depend_on_later_tokens() -> None:
    model = GPT(GPTConfig(layers=1)).double()
    tokens = torch.arange(8)[None]
    changed = tokens.clone()
    changed[0, 5] = 200
    positions = torch.arange(8)[None]

    before, after = (model(each, positions, tokens) for each in (tokens, changed))

    assert torch.equal(before[0, :5], after[0, :5])
    assert not torch.equal(before[0, 5:], after[0, 5:])


def test_the_parallel_gpt_has_no_parallel_modules_on_one_rank() -> None:
    plain, swapped = (
        [type(module) for module in model.modules()]
        for model in (GPT(GPTConfig()), parallel_gpt(GPTConfig(), Axes()))
    )

    assert swapped == plain


def test_all_annotations_of_the_gpt_match_a_module_or_parameter() -> None:
    double: Any = Double(Job(arguments={"steps": 0}))

    gpt.train(double, steps=0, hidden=96)

    assert double.unmatched == []


def test_importing_the_program_imports_no_torch() -> None:
    code = (
        "import sys; from pytest_trainsafe.reference_models import gpt, bugs; "
        "sys.exit('torch' in sys.modules or 'yaml' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_sizes_that_cannot_be_divided_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"hidden=64.*heads=5"):
        GPTConfig(heads=5)
    with pytest.raises(ValueError, match=r"heads=4 must be a multiple of 3"):
        parallel_gpt(GPTConfig(), Axes(tp=Axis(3)))
    with pytest.raises(ValueError, match=r"seq_len=32 must be a multiple of 6"):
        parallel_gpt(GPTConfig(), Axes(cp=Axis(3)))
    with pytest.raises(ValueError, match=r"seq_len / cp=2 must be a multiple of 4"):
        parallel_gpt(GPTConfig(seq_len=4), Axes(cp=Axis(2), tp=Axis(4), sp=True))


def test_unsupported_values_of_zero_and_ep_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"does not support zero=2"):
        Axes.of(Double(Job(Point.of(zero=2))))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"does not support ep=2"):
        Axes.of(Double(Job(Point.of(ep=2))))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("point", "arguments", "reason"),
    [
        (Point.of(tp=4), {"heads": 2}, "heads=2 is not divisible by tp=4"),
        (Point.of(tp=3), {"heads": 3}, "the vocabulary of 256 is not divisible by tp=3"),
        (Point.of(dp=2), {"microbatches": 3}, "microbatches=3 is not divisible by dp=2"),
        (Point.of(cp=2), {"seq_len": 6}, "seq_len=6 is not divisible by 2*cp=4"),
        (Point.of(cp=2, tp=4, sp=True), {"seq_len": 4}, "seq_len/cp=2 is not divisible by tp=4"),
        (Point.of(dp=2, tp=2, cp=2, sp=True), {}, None),
        (Point.of(dp=2), {"seq_len": 7}, None),
        (Point.of(tp=2), {"vocabulary": 3}, "the vocabulary of 3 is not divisible by tp=2"),
        (Point.of(), {"vocabulary": 257}, "vocabulary=257 is not from 1 to 256"),
        (Point.of(), {"hidden": 6}, "hidden=6 cannot be divided into heads=4 equal heads"),
        (Point.of(), {"seq_len": 0}, "seq_len=0 must be at least 1"),
        (Point.of(pp=2, recompute="full"), {"schedule": "torch-gpipe"}, "recompute=full is not"),
        (Point.of(pp=2, recompute=True), {"schedule": "torch-1f1b"}, "recompute=True is not"),
        (Point.of(pp=2), {"schedule": "torch-1f1b", "fp8": True}, "fp8=True is not"),
        (Point.of(pp=2, recompute="none"), {"schedule": "torch-1f1b"}, None),
        (Point.of(pp=2, recompute="full"), {"schedule": "1f1b"}, None),
        (Point.of(recompute="full"), {"schedule": "torch-1f1b"}, None),
        (
            Point.of(pp=2, dp=2),
            {"schedule": "torch-1f1b"},
            "microbatches/dp=1 is less than pp=2; schedule='torch-1f1b' needs at least 2",
        ),
        (
            Point.of(pp=2),
            {"schedule": "torch-zero-bubble", "microbatches": 5},
            "microbatches/dp=5 cannot be divided into 2 equal rounds",
        ),
        (Point.of(pp=2), {"schedule": "torch-1f1b"}, None),
    ],
)
def test_the_rules_of_the_gpt_refuse_invalid_points_with_a_reason(point, arguments, reason) -> None:
    parameters = list(inspect.signature(gpt.train).parameters.values())[1:]
    defaults = {parameter.name: parameter.default for parameter in parameters}

    program: Any = gpt.train
    reasons = [rule(point, {**defaults, **arguments}) for rule in program.trainsafe_rules]

    found = [each for each in reasons if each is not None]
    assert found[0].startswith(reason) if reason else found == [], found
