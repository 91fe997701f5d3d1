"""Errors name the mistake in programs, arguments and checkpoints that cannot be resumed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import nn

from pytest_trainsafe import TrainsafeFailure, assert_resumable
from pytest_trainsafe.errors import ArgumentError, ArgumentTypeError
from pytest_trainsafe.judges.replay.resume.instrument.checkpoints import (
    CheckpointManifest,
    require_checkpoint_of,
)
from pytest_trainsafe.record.clock import ProgramError
from pytest_trainsafe.record.current import _unrecorded
from pytest_trainsafe.trace.facts import StateEntry, TrainingState
from pytest_trainsafe.trace.run_spec import Resume, RunSpec
from tests.support.replay.in_process import traces_here


def train(ctx: Any) -> None:
    """Train one linear layer for four steps, or for the steps that ctx.steps gives."""
    loop(ctx, ctx.steps(4))


def loop(ctx: Any, steps: Any, save: bool = True, load: bool = True, write: bool = True) -> None:
    model = nn.Linear(2, 1)
    ctx.initialize(model)
    ctx.watch(model)
    if load:
        with ctx.load() as folder:
            if folder is not None:
                if ctx.point.recompute:
                    raise KeyError("layers.0")
                model.load_state_dict(torch.load(folder / "model.pt"))
    for step in steps:
        with ctx.step(), ctx.microbatch(0):
            loss = model(torch.tensor([[1.0, step]], dtype=ctx.dtype)).square().sum()
            ctx.loss(loss)
            loss.backward()
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.data -= 0.01 * parameter.grad
                parameter.grad = None
        if save:
            with ctx.save() as folder:
                if folder is not None and write:
                    torch.save(model.state_dict(), folder / "model.pt")


def saves_nothing(ctx: Any) -> None:
    loop(ctx, ctx.steps(4), save=False)


def loads_nothing(ctx: Any) -> None:
    loop(ctx, ctx.steps(4), load=False)


def saves_late(ctx: Any) -> None:
    loop(ctx, ctx.steps(3), save=False)
    with ctx.save():
        pass


def saves_inside(ctx: Any) -> None:
    model = nn.Linear(2, 1)
    ctx.watch(model)
    with ctx.step(), ctx.save():
        pass


def saves_an_empty_folder(ctx: Any) -> None:
    loop(ctx, ctx.steps(4), write=False)


def never_moves(ctx: Any) -> None:
    ctx.initialize(model := nn.Linear(2, 1))
    ctx.watch(model)
    with ctx.load():
        pass
    for _ in ctx.steps(4):
        with ctx.step(), ctx.microbatch(0):
            model(torch.ones(1, 2, dtype=ctx.dtype)).sum().backward()
            model.zero_grad()
        with ctx.save() as folder:
            if folder is not None:
                (folder / "nothing").touch()


def starts_over(ctx: Any) -> None:
    loop(ctx, range(4))


@pytest.mark.parametrize(
    ("program", "at_step", "message"),
    [
        (saves_nothing, 2, "saves_nothing never entered ctx.save, so there is no checkpoint"),
        (saves_late, 2, "did not enter ctx.save after 2 steps, only after 3; pass one of these"),
        (
            saves_inside,
            2,
            r"ctx\.save was entered inside step 0; enter it after the `with ctx\.step\(\):` block",
        ),
        (saves_an_empty_folder, 2, "saves_an_empty_folder saved nothing: it wrote no file into"),
        (
            loads_nothing,
            2,
            "loads_nothing began its first step without loading the checkpoint; enter",
        ),
    ],
)
def test_a_program_that_does_not_save_or_load_is_refused_with_advice(
    tmp_path, program, at_step, message
):
    with pytest.raises((ProgramError, ArgumentError), match=message):
        assert_resumable(traces_here(program, tmp_path), at_step=at_step)


def test_a_program_that_restores_its_state_passes(tmp_path):
    assert_resumable(traces_here(train, tmp_path), at_step=3, steps=5)


def test_a_training_that_changes_no_parameter_is_inconclusive(tmp_path):
    traces = traces_here(never_moves, tmp_path)

    with pytest.raises(TrainsafeFailure, match="no parameter changed before") as caught:
        assert_resumable(traces, at_step=2)

    assert [each.check for each in caught.value.findings] == ["resume:nothing"]
    [note] = traces.runs.notes
    assert note.startswith("assert_resumable did not compare the optimizer's state (ctx.watch was")


def test_a_resume_point_at_which_the_program_cannot_load_is_named(tmp_path):
    traces = traces_here(train, tmp_path)

    with pytest.raises(ProgramError) as caught:
        assert_resumable(traces, at_step=2, resume_point={"recompute": True})

    message = str(caught.value)
    assert "saved a checkpoint at a single device and cannot load it at recompute=True" in message
    assert "(KeyError: 'layers.0')" in message
    assert "torch.distributed.checkpoint" in message


@pytest.mark.parametrize(
    ("program", "arguments", "message"),
    [
        (train, {"at_step": 4}, "at_step=4, but .*:train takes 4 steps; .* 1 to 3"),
        (starts_over, {"at_step": 2, "steps": 3}, "steps=3, but .*:starts_over takes 4 steps"),
        (starts_over, {"at_step": 2}, r"resumed after step 1 .* it takes 4 more, not 2; .*steps"),
    ],
)
def test_numbers_of_steps_that_contradict_the_program_are_refused(
    tmp_path, program, arguments, message
):
    with pytest.raises(ArgumentError, match=message):
        assert_resumable(traces_here(program, tmp_path), **arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"at_step": 0}, "at_step=0; at_step must be 1 or more"),
        ({"at_step": "2"}, "was given '2' as at_step; at_step must be a number of steps"),
        ({"at_step": True}, "was given True as at_step"),
        ({"at_step": 1, "steps": 1}, "steps=1; steps must be 2 or more"),
        ({"at_step": 4, "steps": 4}, "at_step=4 and steps=4; at_step is the number of .* 1 to 3"),
        ({"at_step": 2, "save": train}, "given save= but no load=; give both"),
        ({"at_step": 2, "save": 1, "load": 1}, "was given 1 as save; save must be a function"),
        ({"at_step": 2, "save": print, "load": print}, "not a Python function"),
        (
            {"at_step": 2, "resume_point": 4},
            "was given 4 as resume_point; resume_point must be axes",
        ),
        (
            {"at_step": 2, "resume_point": {"pd": 4}},
            "'pd' is not a parallel axis; the parallel axes are compile, cp",
        ),
        ({"at_step": 2, "resume_point": {"dtype": "float32"}}, "'dtype' is not a parallel axis"),
        ({"at_step": 2, "resume_point": {"dp": 0}}, "axis 'dp' takes an integer >= 1, not 0"),
        ({"at_step": 2, "resume_point": {"dp": 64}}, "cannot run: world size 64 .* is above"),
        ({"at_step": 2, "resume_point": {}}, "is the test's own Point"),
    ],
)
def test_an_invalid_argument_is_named_with_the_allowed_values(tmp_path, arguments, message):
    with pytest.raises(ArgumentError, match=message):
        assert_resumable(traces_here(train, tmp_path), **arguments)


def test_assert_resumable_refuses_the_path_of_a_trace():
    with pytest.raises(ArgumentTypeError, match="pass the fixture candidate_trace"):
        assert_resumable("a/trace", at_step=2)  # type: ignore[arg-type]


SPEC = RunSpec(program="a:train", dtype="float64", resume=Resume(2))


@pytest.mark.parametrize(
    ("written", "message"),
    [
        (None, "manifest.json cannot be read"),
        ("{", "manifest.json cannot be read"),
        ({"format": "something else"}, "is not a checkpoint of a Run"),
        ({"schema": 99}, "has schema version 99, and this pytest-trainsafe reads version 1"),
        ({"spec": 1}, "manifest.json is damaged"),
        (
            {"steps": 3},
            "not loaded, .* the checkpoint of another Run, saved with steps 3 instead of 2",
        ),
        (
            {"spec": {"program": "b:other", "dtype": "float64"}},
            "program b:other instead of a:train",
        ),
        ({"spec": {"program": "a:train", "dtype": "float32"}}, "dtype float32 instead of float64"),
    ],
)
def test_a_checkpoint_that_is_damaged_or_of_another_run_is_refused(
    tmp_path: Path, written, message
):
    sound: dict[str, Any] = msgspec.to_builtins(CheckpointManifest(steps=2, spec=SPEC))
    text = written if isinstance(written, str) else json.dumps({**sound, **(written or {})})
    if written is not None:
        (tmp_path / "manifest.json").write_text(text)

    with pytest.raises(ProgramError, match=message):
        require_checkpoint_of(tmp_path, SPEC, 2)


def test_outside_tests_save_and_load_yield_the_scripts_own_paths(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    ctx = _unrecorded()

    with ctx.save("last") as saved, ctx.load(Path("first")) as loaded, ctx.save() as nowhere:
        assert (saved, loaded, nowhere) == (Path("last"), Path("first"), None)
    assert ctx.steps(3) == range(3)
    with pytest.raises(ProgramError, match=r"ctx.steps was given 0; pass the number of steps"):
        ctx.steps(0)


def test_a_malformed_generator_state_is_refused():
    sound, malformed = (
        TrainingState(1, (StateEntry("rng", "torch cpu", state),))
        for state in ("8ec49623f8631951.12", "8ec49623f8631951.twelve")
    )

    assert sound.fault() == ""
    assert "malformed state: '8ec49623f8631951.twelve'" in malformed.fault()


def test_the_identity_of_a_resumed_run_includes_the_run_it_resumes_from():
    resumed = [
        RunSpec(program="a:train", dtype="float64", resume=Resume(2, each))
        for each in (SPEC, msgspec.structs.replace(SPEC, seed=1))
    ]

    assert resumed[0].identity() != resumed[1].identity()
    assert resumed[0].identity() != SPEC.identity()
