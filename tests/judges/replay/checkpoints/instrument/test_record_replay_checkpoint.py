"""ReplayCheckpoint and fast_forward: a restarted training draws the numbers of the original."""

from __future__ import annotations

import math
import random
import shutil
from typing import Any

import numpy as np
import pytest
import torch

from pytest_trainsafe import ReplayCheckpoint, ReplayError, TrainsafeWarning, fast_forward
from pytest_trainsafe.errors import ArgumentError, ReplayMismatchError
from pytest_trainsafe.judges.replay.checkpoints.instrument.tree import decode, encode
from tests.support.replay.restarted_training import SAVED, train


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The folder of a checkpoint, and the losses of the training that saved it."""
    folder = tmp_path_factory.mktemp("saved")
    return folder, train(folder)


def test_a_restarted_training_has_the_exact_losses_of_the_original(saved):
    folder, losses = saved

    assert train(folder, load=True) == losses[SAVED:]
    assert train(folder, load=True) == losses[SAVED:]


def test_a_checkpoint_of_the_default_generators_is_one_file_below_13_kilobytes(tmp_path):
    path = ReplayCheckpoint("small").save(tmp_path, step=3)

    assert path.stat().st_size < 13_000
    assert [file.name for file in tmp_path.iterdir()] == ["replay-rank0.safetensors"]


def test_the_first_step_after_a_load_reports_the_first_draw_that_differs(saved):
    folder, _ = saved

    with pytest.raises(
        ReplayMismatchError,
        match=r"draw 1 differs: the replay makes uniform_ \(3\) at .*checkpoint.py:\d+ from torch",
    ):
        train(folder, load=True, before=lambda: torch.rand(3))
    # The extra draw comes before all others; without it, the same restart is accepted.
    train(folder, load=True, before=lambda: torch.ones(3))


def test_a_generator_whose_draws_are_not_recorded_is_compared_by_state_after_the_step(tmp_path):
    hidden = random.Random(0)
    replay = ReplayCheckpoint("hidden", generators={"hidden": hidden})
    replay.save(tmp_path, step=0)

    def step(draws):
        with replay.first_step():
            for _ in range(draws):
                hidden.random()

    step(1)
    replay.load(tmp_path)
    with pytest.raises(ReplayMismatchError, match=r"the generator 'hidden' in state .* ledger"):
        step(2)
    replay.load(tmp_path)
    step(1)


def test_a_step_that_raises_is_compared_up_to_the_exception(tmp_path):
    torch.rand(1)
    replay = ReplayCheckpoint("failing")
    replay.save(tmp_path, step=0)

    def step(draws, error):
        with replay.first_step():
            for _ in range(draws):
                torch.rand(2)
                random.random()
            raise error

    with pytest.raises(FloatingPointError):
        step(2, FloatingPointError())
    replay.load(tmp_path)
    with pytest.raises(FloatingPointError):
        step(2, FloatingPointError())
    replay.load(tmp_path)
    torch.rand(1)
    with pytest.raises(ReplayMismatchError, match="the replay is 1 number ahead of the original"):
        step(2, FloatingPointError())


def test_a_checkpoint_with_no_step_after_it_is_not_verified_with_a_warning(tmp_path):
    replay = ReplayCheckpoint("last")
    replay.save(tmp_path, step=9)
    ReplayCheckpoint("last").load(tmp_path)
    replay.load(tmp_path)

    with (
        pytest.warns(TrainsafeWarning, match="is not verified: the run that saved it made no"),
        replay.first_step(),
    ):
        pass
    with replay.first_step():  # later steps are not compared
        pass


def test_a_state_that_fails_to_load_leaves_all_states_and_generators_unchanged(tmp_path):
    class Refusing:
        def __init__(self, value=0):
            self.value, self.refuses = value, False

        def state_dict(self):
            return {"value": self.value}

        def load_state_dict(self, state):
            if self.refuses and state["value"] == 1:
                raise KeyError("an entry is missing")
            self.value = state["value"]

    first, second = Refusing(1), Refusing(1)
    replay = ReplayCheckpoint("refusing", states={"first": first, "second": second})
    replay.save(tmp_path, step=1)
    first.value = second.value = 2
    second.refuses = True
    before = torch.get_rng_state()

    refused = (
        r"'second' of ReplayCheckpoint\(states=\.\.\.\) cannot load its saved state \(KeyError: "
    )
    with pytest.raises(ReplayError, match=refused):
        replay.load(tmp_path)
    assert (first.value, second.value) == (2, 2)
    assert torch.equal(torch.get_rng_state(), before)


def test_decoded_states_have_the_original_values_and_dtypes():
    state: Any = {
        "plain": [None, True, -3, 0.1, "text", b"\0bytes", b""],
        3: (2**127 + 1, -math.inf, {"nested": ()}),
        ("a", 1): {"array": np.arange(6, dtype=np.uint64).reshape(2, 3), "half": np.float32(0.5)},
        "tensors": [torch.arange(3), torch.ones(2, dtype=torch.bfloat16), torch.tensor(7)],
    }
    tensors: dict[str, torch.Tensor] = {}

    found: Any = decode(encode(state, "state", tensors), tensors)

    assert found["plain"] == state["plain"]
    assert found[3] == state[3]
    assert np.array_equal(found["a", 1]["array"], state["a", 1]["array"])
    assert found["a", 1]["array"].dtype == np.uint64
    assert found["a", 1]["half"] == np.float32(0.5)
    for decoded, original in zip(found["tensors"], state["tensors"], strict=True):
        assert torch.equal(decoded, original)
        assert decoded.dtype == original.dtype


@pytest.mark.parametrize("bits", ["MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64"])
def test_numpy_generators_resume_from_their_saved_states(tmp_path, bits):
    generator = np.random.Generator(getattr(np.random, bits)(3))
    legacy = np.random.RandomState(3)
    legacy.normal()  # caches a second number
    generators = {"generator": generator, "legacy": legacy}
    replay = ReplayCheckpoint("numpy", generators=generators)
    replay.save(tmp_path, step=0)
    expected = generator.integers(100, size=5).tolist(), legacy.normal(size=3).tolist()
    generator.normal(size=7)

    replay.load(tmp_path)

    assert (generator.integers(100, size=5).tolist(), legacy.normal(size=3).tolist()) == expected


def test_fast_forward_repeats_every_call_from_its_original_generator_state(tmp_path):
    """The training draws from the same generator between the calls."""

    def training(load):
        torch.manual_seed(9 if load else 5)
        replay, made = ReplayCheckpoint("calls"), []
        drawn = replay.regenerates("drawn", lambda: made.append(torch.rand(2).tolist()), keep="all")
        if load:
            replay.load(tmp_path)
            before = torch.get_rng_state()
            fast_forward(drawn)
            assert torch.equal(torch.get_rng_state(), before)
        else:
            for pause in (0, 0, 3):
                torch.rand(pause)
                drawn()
            replay.save(tmp_path, step=0)
            assert [calls.count for calls in drawn.calls] == [2, 1]
        torch.rand(1)
        drawn()
        return made

    original = training(load=False)
    assert training(load=True) == original


def test_fast_forward_detects_a_function_that_draws_differently(tmp_path):
    count = 4
    replay = ReplayCheckpoint("changed")
    drawn = replay.regenerates("drawn", lambda: torch.randperm(count))
    drawn()
    replay.save(tmp_path, step=0)
    count = 5
    replay.load(tmp_path)
    before = torch.get_rng_state()

    with pytest.raises(ReplayMismatchError, match=r"'drawn' does not draw .* after 1 call, "):
        fast_forward(drawn)
    assert torch.equal(torch.get_rng_state(), before)


def test_fast_forward_refuses_a_function_not_called_before_the_checkpoint(tmp_path):
    replay = ReplayCheckpoint("none")
    drawn = replay.regenerates("drawn", lambda: iter([torch.rand(1)]))
    replay.save(tmp_path, step=0)
    replay.load(tmp_path)

    with pytest.raises(ArgumentError, match="'drawn', which had not been called when"):
        fast_forward(drawn)
    drawn()
    with pytest.raises(ArgumentError, match=r"skip=2, but .* 'drawn' returned has only 1"):
        fast_forward(drawn, skip=2)


def test_an_interrupted_save_keeps_the_previous_checkpoint(tmp_path, monkeypatch):
    replay = ReplayCheckpoint("cut")
    replay.save(tmp_path, step=1)

    def fail(*_):
        raise OSError("no space left")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="no space left"):
        replay.save(tmp_path, step=2)
    monkeypatch.undo()

    assert replay.load(tmp_path) == {"step": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["replay-rank0.safetensors"]


def test_checkpoint_files_of_different_steps_or_of_another_rank_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    replay = ReplayCheckpoint("ranks")
    for rank, step in ((0, 4), (1, 3)):
        monkeypatch.setenv("RANK", str(rank))
        replay.save(tmp_path, step=step)

    with pytest.raises(
        ReplayError, match=r"replay-rank0.* before step 4, but .* rank 1 was saved before step 3"
    ):
        replay.load(tmp_path)
    monkeypatch.setenv("RANK", "0")
    shutil.copy(tmp_path / "replay-rank1.safetensors", tmp_path / "replay-rank0.safetensors")
    with pytest.raises(ReplayError, match="was saved by rank 1, but this is rank 0: the file was"):
        replay.load(tmp_path)
