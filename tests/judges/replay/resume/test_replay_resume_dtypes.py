"""A resume test runs in the dtypes that it is given, and says in which it did not run."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from pytest_trainsafe import TrainsafeFailure, assert_resumable
from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.errors import ArgumentError, ArgumentTypeError
from pytest_trainsafe.runs.traces import Traces
from tests.support.replay.in_process import traces_here

SETTINGS = Settings(dtypes=("float64", "bfloat16"))


def train(ctx: Any, fault: str = "") -> None:
    """Train with master weights of at least float32, which a resume may make of the weights."""
    model = nn.Linear(4, 1).to(ctx.dtype)
    ctx.initialize(model)
    wide = torch.promote_types(ctx.dtype, torch.float32)
    pairs: list[tuple[Any, torch.Tensor]] = []
    for parameter in model.parameters():
        master = parameter.detach().to(wide).clone()
        pairs.append((parameter, master))
        parameter.main_param = master  # type: ignore[attr-defined]
    optimizer = torch.optim.SGD([master for _, master in pairs], lr=0.01, foreach=False)
    ctx.watch(model, optimizer)
    with ctx.load() as folder:
        if folder is not None:
            saved = torch.load(folder / "state.pt")
            model.load_state_dict(saved["model"])
            for (parameter, master), value in zip(pairs, saved["masters"], strict=True):
                master.copy_(parameter.detach() if fault == "masters" else value)
    for step in ctx.steps(4):
        with ctx.step():
            with ctx.microbatch(0):
                x = torch.linspace(-1, 1 + step, 8, dtype=torch.float32).reshape(2, 4).to(ctx.dtype)
                loss = model(x).square().mean()
                loss.backward()
                ctx.loss(loss)
            for parameter, master in pairs:
                master.grad = parameter.grad.to(wide)
                parameter.grad = None
            optimizer.step()
            with torch.no_grad():
                for parameter, master in pairs:
                    parameter.copy_(master)
        with ctx.save() as folder:
            if folder is not None:
                masters = [master.clone() for _, master in pairs]
                torch.save({"model": model.state_dict(), "masters": masters}, folder / "state.pt")


def traces(folder: Path, fault: str = "", settings: Settings = SETTINGS) -> Traces:
    return traces_here(functools.partial(train, fault=fault), folder, settings, train)


def test_master_weights_that_are_lost_in_low_precision_are_found_there(tmp_path):
    with pytest.raises(TrainsafeFailure) as failure:
        assert_resumable(traces(tmp_path, "masters"), at_step=2, dtypes=["float64", "bfloat16"])

    [finding] = failure.value.findings
    assert (finding.check, finding.dtype) == ("resume:model", "bfloat16")
    assert finding.where is not None
    assert finding.where.kind == "master_param"
    report = " ".join(str(failure.value).split())
    assert "at a single device in bfloat16, interrupted after step 1" in report


def test_master_weights_that_are_restored_resume_in_every_dtype(tmp_path):
    candidate = traces(tmp_path)

    assert_resumable(candidate, at_step=2, dtypes=["float64", "bfloat16"])

    assert not [note for note in candidate.runs.notes if "assert_resumable ran" in note]


def test_a_dtype_of_the_test_in_which_nothing_is_resumed_is_noted(tmp_path):
    candidate = traces(tmp_path, "masters")

    assert_resumable(candidate, at_step=2)

    [note] = candidate.runs.notes
    assert note.startswith("assert_resumable ran in float64 only, so a fault that exists only in ")
    assert "bfloat16" in note


@pytest.mark.parametrize(
    ("dtypes", "error", "words"),
    [
        ("bfloat16", ArgumentTypeError, "dtypes must be a list of names"),
        (3, ArgumentTypeError, "dtypes must be a list of names"),
        (["bfloat"], ArgumentError, "did you mean"),
        ([3], ArgumentError, "dtypes takes some of"),
    ],
)
def test_wrong_dtypes_are_refused(tmp_path, dtypes, error, words):
    with pytest.raises(error, match=words):
        assert_resumable(traces(tmp_path), at_step=2, dtypes=dtypes)
