"""The case studies: each replayed from a checkpoint to the step that fails, twice, identically."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pytest_trainsafe import Trace
from pytest_trainsafe.errors import ReplayMismatchError
from pytest_trainsafe.judges.replay.checkpoints.events import ReplayCheckpointEvent, RestartEvent
from pytest_trainsafe.judges.replay.checkpoints.instrument import generators
from pytest_trainsafe.record import program
from pytest_trainsafe.reference_models.replay import accuracy_drop, fgsm, nan_loss, pgd


def run(assign, train, **changes):
    """Train; returns the trace, the result of the program and the error that ended it."""
    assignment, results, error = assign(**changes), [], None
    # The Run's checkpoints lie beside its trace.
    folder = Path(assignment.trace).parent / f"run{assignment.trace[-1]}" / "trace"
    folder.parent.mkdir()
    Path(assignment.trace).rename(folder)
    assignment = type(assignment)(spec=assignment.spec, trace=str(folder))
    try:
        program.record(assignment, lambda ctx: results.append(train(ctx)))
    except FloatingPointError as raised:
        error = str(raised)
    return Trace.open(folder, allow_incomplete=True), *results, error


def hashes(trace, step):
    """The hashes of everything that a trace recorded from a step on."""
    tensors = trace.ranks[0].tensors.items()
    return {id: event.hash for id, event in tensors if id.step >= step}


def replayed_twice(assign, train, original, step):
    """Replay from the last checkpoint before a step; returns what `run` returns, of the second."""
    saved = original.ranks[0].events_of(ReplayCheckpointEvent)
    checkpoint = max((event for event in saved if event.step <= step), key=lambda e: e.step)
    folder = original.path.parent / "checkpoints" / checkpoint.folder
    assert 0 < checkpoint.step <= step
    for _ in range(2):
        found = run(assign, train, checkpoint=str(folder))
        [restart, *_] = found[0].ranks[0].events_of(RestartEvent)
        assert (restart.step, restart.hash) == (checkpoint.step, checkpoint.hash)
        expected = hashes(original, checkpoint.step)
        assert {id.step for id in expected} >= {step}
        assert hashes(found[0], 0) == expected
    return found


def test_an_adversarial_training_is_replayed_exactly(assign):
    original, _, _ = run(assign, pgd.train)

    for step in (5, 11):
        replayed_twice(assign, pgd.train, original, step)


def test_a_training_that_differs_from_run_to_run_is_replayed_exactly(assign):
    original, robust, _ = run(assign, fgsm.train)
    another, _, _ = run(assign, fgsm.train)
    assert hashes(another, 0) != hashes(original, 0)

    _, again, _ = replayed_twice(assign, fgsm.train, original, 11)

    assert again == robust


def test_a_replay_reproduces_a_sudden_drop_in_accuracy(assign):
    original, accuracies, _ = run(assign, accuracy_drop.train)
    steps = [s for s in accuracies if s and accuracies[s - 1] - accuracies[s] > 0.3]
    assert steps, accuracies

    _, again, _ = replayed_twice(assign, accuracy_drop.train, original, steps[0])

    assert again == {step: value for step, value in accuracies.items() if step in again}
    assert steps[0] in again


def test_a_replay_reproduces_a_nan_or_infinite_loss(assign):
    original, error = run(assign, nan_loss.train)
    step = int(error.rpartition(" ")[2])
    assert error in (f"the loss is nan in step {step}", f"the loss is inf in step {step}")

    _, again = replayed_twice(assign, nan_loss.train, original, step)

    assert again == error


def test_the_first_draw_of_a_generator_that_is_not_restored_is_reported(assign, monkeypatch):
    """A planted fault: the restart draws other numbers than the original."""
    original, _, _ = run(assign, fgsm.train)
    made = generators._torch

    def forgetting(generator):
        source = made(generator)
        if generator is not torch.default_generator:
            source.restore = lambda state: None
        return source

    monkeypatch.setattr(generators, "_torch", forgetting)

    with pytest.raises(ReplayMismatchError, match="draw 1 differs: the replay makes randperm"):
        replayed_twice(assign, fgsm.train, original, 11)
