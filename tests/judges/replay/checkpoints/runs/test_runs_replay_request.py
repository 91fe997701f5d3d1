"""The Run, step and checkpoint of a replay request, and the Trace that the replay makes."""

from __future__ import annotations

import shutil
from typing import Any

import msgspec
import pytest
import torch
from torch import nn

from pytest_trainsafe import Trace, TraceError, assert_equivalent
from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.errors import ArgumentError, ReplayMismatchError
from pytest_trainsafe.frameworks import BUILT_IN
from pytest_trainsafe.judges.replay.checkpoints.events import file
from pytest_trainsafe.judges.replay.checkpoints.instrument.checkpoint import ReplayCheckpoint
from pytest_trainsafe.judges.replay.checkpoints.runs.replays import Replays
from pytest_trainsafe.judges.replay.checkpoints.runs.request import read_request
from pytest_trainsafe.launch import GroupFailure
from pytest_trainsafe.launch.result import GroupResult
from pytest_trainsafe.record import program
from pytest_trainsafe.record.assignment import Assignment
from pytest_trainsafe.trace.rng.ledger import ledger
from pytest_trainsafe.trace.run_spec import RunSpec
from pytest_trainsafe.trace.writer import manifest_of, write_manifest

SPEC = RunSpec(program="a_program:train", dtype="float32", adapters=BUILT_IN)
ON_TWO = msgspec.structs.replace(SPEC, axes=(("dp", 2),))


def train(ctx, *, ends=None, loads=True, draws=1, blows=None):
    """Six steps with dropout, a checkpoint after every second one; step `ends` raises."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 1))
    ctx.initialize(model)
    torch.manual_seed(ctx.rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    replay, first = ReplayCheckpoint("steps"), 0
    folder = replay.resume_folder()
    if folder is not None and loads:
        state = torch.load(folder / f"own{ctx.rank}.pt", weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = replay.load(folder)["step"]
    ctx.watch(model, optimizer)
    for step in range(first, 6):
        with ctx.step(), ctx.microbatch(0):
            if step == ends:
                raise FloatingPointError(step)
            x = torch.rand(draws + 1, 3)
            loss = model(x).square().sum() * (float("inf") if step == blows else 1)
            ctx.loss(loss)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        if step % 2:
            made = replay.folder(step + 1)
            made.mkdir(parents=True, exist_ok=True)
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state, made / f"own{ctx.rank}.pt")
            replay.save(made, step=step + 1)


@pytest.fixture
def record(tmp_path, monkeypatch):
    """Record the program into `tmp_path / name / "trace"`; a FloatingPointError ends it early."""

    def go(name, spec=SPEC, **how):
        folder = tmp_path / name / "trace"
        write_manifest(folder, manifest_of(spec, "cpu"))
        assignment = Assignment(spec=spec, trace=str(folder))
        monkeypatch.setenv("WORLD_SIZE", str(spec.point.world_size))
        for rank in range(spec.point.world_size):
            monkeypatch.setenv("RANK", str(rank))
            try:
                program.record(assignment, lambda ctx: train(ctx, **how))
            except FloatingPointError:
                assert "ends" in how
        return folder

    return go


@pytest.fixture
def replay(record, tmp_path):
    """Replay a trace; returns the Trace for the judges, and the notes of the replay."""

    def go(path, step=None, spec=SPEC, **how):
        replays = Replays(Settings(replay=(str(path), step)))
        make = replays.instead(spec)
        assert make is not None
        made = make(tmp_path / "later/trace", lambda spec: record("later", spec, **how))
        return made, replays.notes

    return go


def test_the_trace_of_a_replay_has_all_steps_and_the_bits_of_the_original(record, replay):
    original = record("original")

    made, [note] = replay(original, 5)

    replayed = [id for id in Trace.open(original).ids() if id.step >= 4]
    assert note == (
        "a_program:train at a single device in float32 was replayed from the checkpoint before "
        f"step 4: 2 draws of step 4 verified against the ledger of the trace; {len(replayed)} "
        "tensors of the replayed steps have the recorded bits"
    )
    assert made.complete
    assert [event.step for event in Trace.open(made.path).ranks[0].steps] == [4, 5]
    assert [event.step for event in made.ranks[0].steps] == list(range(6))
    whole = Trace.open(original)
    assert list(made.ids()) == list(whole.ids())
    assert_equivalent(made, whole)
    before: list[list[Any]] = [
        [event for event in ledger(trace.ranks[0]) if getattr(event, "step", 0) < 4]
        for trace in (made, whole)
    ]
    assert before[0] == before[1]


def test_each_rank_is_replayed_with_its_own_random_streams(record, replay):
    original = record("original", ON_TWO)

    made, [note] = replay(original, 3, ON_TWO)

    assert "at dp=2 in float32 was replayed from the checkpoint before step 2: 4 draws of" in note
    assert note.endswith("tensors of the replayed steps have the recorded bits")
    assert [rank.rank for rank in made.ranks] == [0, 1]
    whole = Trace.open(original)
    for before, after in zip(whole.ranks, made.ranks, strict=True):
        assert before.tensors.keys() == after.tensors.keys()
        for id, event in before.tensors.items():
            found = made.load(after.rank, after.tensors[id])
            assert torch.equal(found, whole.load(after.rank, event))


def test_the_random_state_of_rank_0_restored_on_another_rank_is_detected(record, replay):
    """The planted fault of a program that saves only the random state of rank 0."""
    original = record("original", ON_TWO)
    folder = original.parent / "checkpoints" / "step-00000002"
    header, tensors = file.read(file.file_of(folder, 0))
    file.write(folder, msgspec.structs.replace(header, rank=1), tensors)

    with pytest.raises(ReplayMismatchError, match=r"on rank 1 draw 1 differs: the replay"):
        replay(original, 3, ON_TWO)


def test_without_a_given_step_a_replay_is_of_the_failed_step_or_the_last_one(record):
    assert read_request(str(record("plain")), None).step == 5
    ended = read_request(str(record("ended", ends=3)), None)
    assert ended.folder is not None
    assert (ended.step, ended.first, ended.folder.name) == (3, 2, "step-00000002")
    blown = read_request(str(record("blown", blows=2)), None)
    assert (blown.step, blown.first) == (2, 2)


def test_the_last_checkpoint_before_the_step_is_chosen(record):
    trace = record("original")
    for step, first in ((2, 2), (3, 2), (5, 4)):
        assert read_request(str(trace.parent), step).first == first
    early = read_request(str(trace), 1)
    assert (early.folder, early.why) == (
        None,
        "the checkpoints were saved later, before the steps 2, 4, 6",
    )


def test_without_a_checkpoint_the_run_begins_at_its_first_step_with_a_note(record):
    trace = record("original")
    shutil.rmtree(trace.parent / "checkpoints" / "step-00000004")
    assert read_request(str(trace), 5).first == 2
    shutil.rmtree(trace.parent / "checkpoints")
    replays = Replays(Settings(replay=(str(trace), 5)))

    assert replays.instead(SPEC) is None

    [note] = replays.notes
    assert "in float32 runs from the start: there is no checkpoint in" in note


def test_runs_with_another_spec_are_not_replayed(record):
    replays = Replays(Settings(replay=(str(record("original")), 5)))
    for change in ({"dtype": "float64"}, {"seed": 1}, {"perturbation": 1e-7}, {"repeat": 1}):
        assert replays.instead(msgspec.structs.replace(SPEC, **change)) is None
    assert replays.instead(msgspec.structs.replace(SPEC, timeout=7.0)) is not None
    assert replays.notes == []
    assert Replays(Settings()).instead(SPEC) is None


def test_a_step_outside_of_the_trace_is_refused(record):
    trace = record("original")
    with pytest.raises(
        ArgumentError, match=r"given step 6, but .* has only the steps 0 to 5; choose"
    ):
        read_request(str(trace), 6)


def test_a_folder_that_is_no_trace_is_refused(tmp_path):
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(TraceError, match=r"is not a trace: manifest\.json does not say `format"):
        read_request(str(tmp_path), None)


def test_a_trace_without_steps_is_requested_at_step_0_without_a_checkpoint(record):
    trace = record("original")
    (trace / "rank0" / "events.jsonl").write_bytes(b"")
    request = read_request(str(trace), None)
    assert (request.step, request.folder) == (0, None)
    assert request.why == "the program saved no ReplayCheckpoint"


def test_a_program_that_draws_differently_fails_in_the_first_replayed_step(record, replay):
    original = record("original")

    with pytest.raises(
        ReplayMismatchError,
        match=r"of step 4 from .* on rank 0 draw 1 differs: the replay makes uniform_ \(3x3\)",
    ):
        replay(original, 5, draws=2)


@pytest.mark.parametrize("recorded_anything", [False, True])
def test_a_replay_that_fails_before_it_loads_the_checkpoint_has_a_note(
    record, tmp_path, recorded_anything
):
    replays = Replays(Settings(replay=(str(record("original")), 5)))
    make = replays.instead(SPEC)
    assert make is not None
    trace = tmp_path / "later" / "trace"

    def fail(spec):
        if recorded_anything:
            record("later", spec, loads=False, ends=0)
        raise GroupFailure(
            GroupResult(task="train", folder=tmp_path, ranks=(), seconds=0.0, timeout=1.0)
        )

    with pytest.raises(GroupFailure):
        make(trace, fail)

    [note] = replays.notes
    assert note.endswith(
        "was to be replayed from the checkpoint before step 4, but it failed, as shown, and not "
        "every rank had loaded the checkpoint"
    )


@pytest.mark.parametrize("fails", [False, True])
def test_a_replay_that_draws_otherwise_has_a_note(record, tmp_path, fails):
    replays = Replays(Settings(replay=(str(record("original")), 5)))
    make = replays.instead(SPEC)
    assert make is not None

    def draw_otherwise(spec):
        record("later", spec, draws=2)
        if fails:
            raise GroupFailure(
                GroupResult(task="train", folder=tmp_path, ranks=(), seconds=0.0, timeout=1.0)
            )

    with pytest.raises(ReplayMismatchError):
        make(tmp_path / "later" / "trace", draw_otherwise)

    [note] = replays.notes
    assert "in float32 failed to replay: the replay of step 4 from" in note


def test_a_request_that_is_refused_has_a_note(record):
    replays = Replays(Settings(replay=(str(record("original")), 6)))

    with pytest.raises(ArgumentError):
        replays.instead(SPEC)

    [note] = replays.notes
    assert note.startswith("nothing was replayed: --trainsafe-replay was given step 6, but")


def test_a_program_that_does_not_load_the_checkpoint_begins_at_its_first_step(record, replay):
    original = record("original")

    made, [note] = replay(original, 5, loads=False)

    assert "runs from the start, because the program did not load the checkpoint. Load it" in note
    assert [event.step for event in made.ranks[0].steps] == list(range(6))


def test_a_failing_step_that_no_longer_fails_is_replayed_to_the_end(record, replay):
    original = record("original", ends=5)

    made, [note] = replay(original)

    assert made.complete
    assert [event.step for event in made.ranks[0].steps] == list(range(6))
    assert "from the checkpoint before step 4: 2 draws of step 4 verified" in note
