"""Checkpoints that functions of the test save and load, and those of `TrainingCheckpoint`."""

from __future__ import annotations

import os
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from pytest_trainsafe import TrainingCheckpoint, TrainsafeFailure, assert_resumable
from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.errors import ArgumentError, ArgumentTypeError
from pytest_trainsafe.judges.replay.resume.instrument.save import restore_rng, rng_states
from tests.support.replay import checkpoint_program
from tests.support.replay.in_process import traces_here

#: `torch.distributed.checkpoint` of torch 2.10 uses a class that torch has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:TypedStorage is deprecated:UserWarning")


def test_a_training_resumes_through_the_tests_own_save_and_load_functions(tmp_path):
    traces = traces_here(checkpoint_program.plain, tmp_path)

    assert_resumable(traces, at_step=2, save=checkpoint_program.save, load=checkpoint_program.load)


def test_a_load_function_that_does_not_load_the_optimizer_is_reported(tmp_path):
    traces = traces_here(checkpoint_program.plain, tmp_path)
    save, load = checkpoint_program.save, checkpoint_program.load_weights

    with pytest.raises(TrainsafeFailure) as caught:
        assert_resumable(traces, at_step=2, save=save, load=load)

    report = " ".join(str(caught.value).split())
    assert [finding.check for finding in caught.value.findings] == ["resume:moment"]
    assert report.startswith(
        "trainsafe: tests.support.replay.checkpoint_program:plain at a single device "
        "in float64, interrupted after step "
    )
    assert "weight.momentum_buffer is absent" in report
    assert "differs first weight · param · step 2, on rank 0" in report


@pytest.mark.parametrize("noise", [False, True])
def test_a_training_resumes_from_its_training_checkpoint(tmp_path, noise):
    settings = Settings(dtypes=("float64",), record="sketch")
    traces = traces_here(
        lambda ctx: checkpoint_program.train(ctx, noise=noise),
        tmp_path,
        settings,
        program=checkpoint_program.train,
    )

    assert_resumable(traces, at_step=2, steps=5)


def test_an_additional_draw_from_the_programs_own_generator_is_reported(tmp_path):
    traces = traces_here(
        lambda ctx: checkpoint_program.train(ctx, fault="draws again", noise=True),
        tmp_path,
        program=checkpoint_program.train,
    )

    with pytest.raises(TrainsafeFailure) as caught:
        assert_resumable(traces, at_step=2)

    [finding] = caught.value.findings
    assert finding.check == "resume:rng"
    assert "torch.Generator of checkpoint_program.py:" in finding.message
    assert "1 draw" in finding.message


def test_an_unrestored_schedule_that_changes_no_rate_in_these_steps_is_inconclusive(tmp_path):
    """StepLR restarts, but its first change of the rate is after the last step."""
    traces = traces_here(restarts_its_schedule, tmp_path)

    with pytest.raises(TrainsafeFailure, match="is inconclusive, so not a pass") as caught:
        assert_resumable(traces, at_step=2)

    [finding] = caught.value.findings
    assert (finding.check, finding.verdict) == ("resume:lr_schedule", "inconclusive")
    assert "StepLR.last_epoch is 2, not 4" in finding.message

    assert "no result of 4 steps differs because of it" in finding.message

    accepting = Settings(dtypes=("float64",), accept=("resume:lr_schedule",))
    assert_resumable(traces_here(restarts_its_schedule, tmp_path / "again", accepting), at_step=2)


def test_an_unrestored_stream_without_effect_is_inconclusive_and_passes_if_unseeded(tmp_path):
    def seeded(ctx):
        random.seed(ctx.seed)
        logs_at_random(ctx)

    def unseeded(ctx):
        random.seed()
        logs_at_random(ctx)

    by_functions: dict[str, Any] = {
        "at_step": 2,
        "save": checkpoint_program.save,
        "load": checkpoint_program.load,
    }
    traces = traces_here(seeded, tmp_path, program=logs_at_random)
    with pytest.raises(TrainsafeFailure) as caught:
        assert_resumable(traces, **by_functions)

    [finding] = caught.value.findings
    assert (finding.check, finding.verdict) == ("resume:rng", "inconclusive")
    assert "python random of rank 0 is 2 draws behind: it continues from before random.random" in (
        finding.message
    )
    unseeded_traces = traces_here(unseeded, tmp_path / "unseeded", program=logs_at_random)
    assert_resumable(unseeded_traces, **by_functions)


def logs_at_random(ctx):
    """Train, and draw in each step a number that no result depends on."""
    checkpoint_program.plain(ctx, lambda: random.random())


def restarts_its_schedule(ctx):
    """Train with a schedule that is not saved, and changes the rate in step 100 only."""
    model = nn.Linear(2, 1)
    ctx.initialize(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=100)
    ctx.watch(model, optimizer)
    with ctx.load() as folder:
        if folder is not None:
            model.load_state_dict(torch.load(folder / "model.pt"))
    for step in ctx.steps(4):
        with ctx.step(), ctx.microbatch(0):
            loss = model(torch.tensor([[1.0, step]], dtype=ctx.dtype)).square().sum()
            ctx.loss(loss)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
        with ctx.save() as folder:
            if folder is not None:
                torch.save(model.state_dict(), folder / "model.pt")


#: What loads wrongly at another Point, the codes of the findings, and words of the first one.
LOADED_WRONGLY = [
    ("weights doubled", ["model"], "weight · param · step 1 is loaded with other values than at"),
    ("moments doubled", ["moment"], "weight.momentum_buffer · optimizer_state · step 1 is loaded"),
    ("moments lost", ["moment"], "step 1 is absent before the first resumed step and present aft"),
    ("both doubled", ["model", "moment"], "weight · param · step 1 is loaded with other values"),
    ("buffer lost", ["model"], "seen · buffer · step 1 is loaded with other values than at"),
    ("rate doubled", ["lr_schedule"], "the LR schedule is not restored: on rank 0 group 0: lr is"),
]


@pytest.mark.parametrize("record", ["full", "sketch"])
@pytest.mark.parametrize(("fault", "codes", "words"), LOADED_WRONGLY)
def test_what_is_loaded_wrongly_at_another_point_is_named_without_its_consequences(
    tmp_path, fault, codes, words, record
):
    caught = failure_elsewhere(tmp_path, fault, record)

    assert [each.check for each in caught.findings] == [f"resume:{code}" for code in codes]
    lead = caught.findings[0]
    assert (lead.judge, lead.verdict) == ("replay", "fail")
    assert words in lead.message
    report = " ".join(str(caught).split())
    assert "differs first resumed at recompute=True, " in report
    assert "not affected" not in report


@pytest.mark.parametrize(
    ("fault", "code", "message", "cause"),
    [
        ("reads otherwise", "data_order", "differs first in input.0 · ", "read different data"),
        ("other loss", "unknown", "loss · step 2", "the loaded weights and optimizer state agree"),
        ("keeps no moments", "unknown", "step 2", "such as weight.momentum_buffer · optimizer_st"),
    ],
)
def test_a_training_that_differs_at_another_point_for_other_reasons_lists_the_tensors(
    tmp_path, fault, code, message, cause
):
    caught = failure_elsewhere(tmp_path, fault)

    lead, *compared = caught.findings
    assert (lead.judge, lead.check, lead.verdict) == ("replay", f"resume:{code}", "fail")
    assert message in lead.message
    assert lead.pattern is not None
    assert cause in lead.pattern.cause
    assert compared
    assert "replay" not in {each.judge for each in compared}
    assert "wrong_elsewhere at recompute=True differs from" in " ".join(str(caught).split())


def test_a_point_that_has_no_effect_is_inconclusive_by_the_name_to_accept(tmp_path):
    caught = failure_elsewhere(tmp_path, "")

    assert [each.check for each in caught.findings] == ["in-effect"]
    assert caught.findings[0].verdict == "inconclusive"
    assert "resume:" not in " ".join(str(caught).split())
    settings = Settings(dtypes=("float64",), accept=("in-effect",))
    traces = traces_here(wrong_elsewhere, tmp_path / "accepted", settings)
    assert_resumable(traces, at_step=2, resume_point={"recompute": True})


def failure_elsewhere(folder, fault, record="full"):
    """The failure of a training that is resumed at its own Point and with recompute on."""
    traces = traces_here(
        lambda ctx: wrong_elsewhere(ctx, fault),
        folder,
        Settings(dtypes=("float64",), record=record),
        wrong_elsewhere,
    )
    with pytest.raises(TrainsafeFailure) as caught:
        assert_resumable(traces, at_step=2, resume_point={"recompute": True})
    return caught.value


def wrong_elsewhere(ctx, fault=""):
    """Train with momentum; `fault` is the state that loads wrongly if the Point has recompute."""
    model = nn.Linear(4, 1)
    seen = torch.zeros((), dtype=ctx.dtype)
    model.register_buffer("seen", seen)
    ctx.initialize(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False)
    ctx.watch(model, optimizer)
    wrong = fault if ctx.point.recompute else ""
    with ctx.load() as folder:
        if folder is not None:
            checkpoint_program.load(str(folder), model, optimizer)
            if wrong in ("weights doubled", "both doubled"):
                model.weight.data *= 2
            if wrong in ("moments doubled", "both doubled"):
                optimizer.state[model.weight]["momentum_buffer"] *= 2
            if wrong in ("moments lost", "keeps no moments"):
                optimizer.state.clear()
            if wrong == "buffer lost":
                seen.zero_()
            if wrong == "rate doubled":
                optimizer.param_groups[0]["lr"] *= 2
    for step in ctx.steps(4):
        with ctx.step(), ctx.microbatch(0):
            shift = 1.0 if wrong == "reads otherwise" else 0.0
            x = torch.linspace(-shift, step + 1, 4, dtype=ctx.dtype)
            seen += 1
            loss = model(x[None] + seen).square().mean()
            if wrong == "other loss":
                loss = loss * 2
            loss.backward()
            ctx.loss(loss)
            optimizer.step()
            optimizer.zero_grad()
            if wrong == "keeps no moments":
                optimizer.state.clear()
        with ctx.save() as folder:
            if folder is not None:
                checkpoint_program.save(str(folder), model, optimizer)


def test_restore_rng_restores_the_states_of_all_generators(tmp_path):
    own = {"own": torch.Generator().manual_seed(3)}
    torch.save(rng_states(own), tmp_path / "states.pt")

    def drawn():
        numbers = torch.rand(2).tolist() + torch.rand(2, generator=own["own"]).tolist()
        return [*numbers, random.random(), float(np.random.rand())]

    first = drawn()
    assert drawn() != first
    restore_rng(torch.load(tmp_path / "states.pt"), own)

    assert drawn() == first


def test_restore_rng_names_a_generator_that_the_checkpoint_lacks():
    with pytest.raises(ArgumentError, match="no state of the generators noise; it has none"):
        restore_rng(rng_states(), {"noise": torch.Generator()})


def test_training_checkpoint_refuses_an_object_without_state_dict():
    with pytest.raises(ArgumentTypeError, match="as 'loader'; pass an object with state_dict"):
        TrainingCheckpoint(nn.Linear(1, 1), per_rank={"loader": [1, 2]})  # type: ignore[dict-item]


def test_per_rank_state_is_not_loaded_at_another_world_size(tmp_path):
    made = TrainingCheckpoint(nn.Linear(1, 1), per_rank={"reader": checkpoint_program.Reader()})
    made.save(tmp_path)
    held = torch.load(tmp_path / "rank0.pt")
    torch.save({**held, "ranks": 2}, tmp_path / "rank0.pt")

    assert made.load_rng(tmp_path) is False
    with pytest.raises(
        ArgumentError,
        match="a world size other than 1, so the state of reader",
    ):
        made.load(tmp_path)


class Position:
    """A position in the data, whose state is an integer."""

    def __init__(self, position: int) -> None:
        self.position = position

    def state_dict(self) -> int:
        return self.position

    def load_state_dict(self, state: int) -> None:
        self.position = state


def test_ranks_load_their_per_rank_state_before_torch_distributed_is_initialised(
    tmp_path, monkeypatch
):
    model, held = nn.Linear(2, 2), Position(3)
    TrainingCheckpoint(model, per_rank={"held": held}).save(tmp_path)
    saved = torch.load(tmp_path / "rank0.pt")
    torch.save({**saved, "ranks": 2}, tmp_path / "rank0.pt")
    torch.save({**saved, "ranks": 2, "per_rank": {"held": 5}}, tmp_path / "rank1.pt")

    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank, expected in (("0", 3), ("1", 5)):
        monkeypatch.setenv("RANK", rank)
        checkpoint = TrainingCheckpoint(model, per_rank={"held": held})
        checkpoint.load(tmp_path)
        assert (held.position, checkpoint.load_rng(tmp_path)) == (expected, True)


def test_ranks_cannot_save_before_torch_distributed_is_initialised(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")

    with pytest.raises(ArgumentError, match="one of 2 ranks"):
        TrainingCheckpoint(nn.Linear(2, 2)).save(tmp_path)


class OwnClass:
    """An object whose state is of a class of its own, which only running its code could make."""

    def __init__(self) -> None:
        self.state: Any = None

    def state_dict(self) -> Any:
        return {"position": self}

    def load_state_dict(self, state: Any) -> None:
        self.state = state


class Runs:
    """Pickled, it is a call: reading it as anything but data would make the folder."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        return os.mkdir, (self.folder,)


@pytest.mark.parametrize("where", ["shared", "per_rank"])
def test_a_state_that_is_not_data_is_refused_with_its_class(tmp_path, where):
    held: Any = {where: {"place": OwnClass()}}
    checkpoint = TrainingCheckpoint(nn.Linear(2, 2), **held)
    checkpoint.save(tmp_path)

    with pytest.raises(ArgumentError, match=r"holds a [\w.]+\.OwnClass, and checkpoints are read"):
        checkpoint.load(tmp_path)


@pytest.mark.parametrize("file", ["shared.pt", "rank0.pt"])
def test_code_in_a_file_of_a_checkpoint_does_not_run(tmp_path, file):
    checkpoint = TrainingCheckpoint(nn.Linear(2, 2))
    checkpoint.save(tmp_path / "saved")
    torch.save({"rng": Runs(str(tmp_path / "made"))}, tmp_path / "saved" / file)

    with pytest.raises(ArgumentError, match=r"mkdir, and checkpoints are read as data only"):
        checkpoint.load(tmp_path / "saved")

    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("content", [b"", b"no checkpoint", b"PK\x03\x04" + b"\0" * 99])
def test_a_file_that_is_no_checkpoint_is_a_clear_error(tmp_path, content):
    checkpoint = TrainingCheckpoint(nn.Linear(2, 2))
    checkpoint.save(tmp_path)
    (tmp_path / "rank0.pt").write_bytes(content)

    with pytest.raises(ArgumentError, match=r"rank0\.pt is no file of a TrainingCheckpoint"):
        checkpoint.load_rng(tmp_path)
