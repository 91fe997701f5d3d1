"""Invalid input of ReplayCheckpoint and fast_forward is refused, with a message and advice."""

from __future__ import annotations

import random

import pytest
import torch

from pytest_trainsafe import ReplayCheckpoint, ReplayError, fast_forward
from pytest_trainsafe.errors import ArgumentError, ArgumentTypeError
from pytest_trainsafe.judges.replay.checkpoints.events import file


class Counting:
    """A state that counts how often it was loaded."""

    loaded = 0

    def state_dict(self):
        return {"loaded": self.loaded}

    def load_state_dict(self, state):
        self.loaded += 1


@pytest.fixture
def folder(tmp_path):
    """The folder of a checkpoint of the program "ours"."""
    ReplayCheckpoint("ours", states={"counting": Counting()}).save(tmp_path, step=2)
    return tmp_path


def refused(folder, program="ours", **changes):
    """The error message of a refused checkpoint; asserts that nothing was loaded."""
    counting = Counting()
    given = {"states": {"counting": counting}, **changes}
    replay = ReplayCheckpoint(program, **given)
    before = torch.get_rng_state(), random.getstate()
    with pytest.raises(ReplayError) as caught:
        replay.load(folder)
    assert counting.loaded == 0
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    return str(caught.value)


def test_a_checkpoint_of_another_program_is_refused(folder):
    assert "is a checkpoint of the program 'ours', but this program is 'theirs'" in refused(
        folder, "theirs"
    )


def test_a_checkpoint_of_another_schema_version_is_refused(folder, monkeypatch):
    monkeypatch.setattr(file, "SCHEMA", 7)
    assert "has schema 1, and this pytest-trainsafe reads schema 7. Load it with" in refused(folder)


def test_a_checkpoint_of_another_world_size_is_refused(folder, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "was saved with world size 1, but this run has world size 2. The states" in refused(
        folder
    )


def test_a_checkpoint_with_other_generators_or_states_is_refused(folder):
    assert "has the states counting, which this program did not give" in refused(folder, states={})
    new = refused(folder, generators={"new": torch.Generator()})
    assert "lacks the generators new, which this program gives" in new


def test_a_generator_of_another_kind_is_refused(tmp_path):
    ReplayCheckpoint("ours", generators={"g": torch.Generator()}).save(tmp_path, step=0)
    message = refused(tmp_path, states={}, generators={"g": random.Random()})
    assert "has a generator 'g' of kind torch cpu, but in this program it is of" in message


def test_a_checkpoint_with_an_unknown_regenerated_function_is_refused(tmp_path):
    replay = ReplayCheckpoint("ours")
    replay.regenerates("order", lambda: torch.randperm(3))()
    replay.save(tmp_path, step=0)
    assert "has the regenerated functions order, which" in refused(tmp_path, states={})


@pytest.mark.parametrize("given", [3, None, b"folder"])
def test_what_is_not_the_path_of_a_folder_is_refused(given):
    replay = ReplayCheckpoint("ours")
    with pytest.raises(ArgumentTypeError, match=r"load was given folder=.*; pass the path of"):
        replay.load(given)
    with pytest.raises(ArgumentTypeError, match=r"save was given folder=.*; pass the path of"):
        replay.save(given, step=1)


def test_a_root_that_is_not_the_path_of_a_folder_is_refused():
    with pytest.raises(ArgumentTypeError, match=r"ReplayCheckpoint was given root=3; pass the"):
        ReplayCheckpoint("ours", root=3)  # type: ignore[arg-type]


@pytest.mark.parametrize("argument", ["generators", "states"])
def test_generators_and_states_that_have_no_names_are_refused(argument):
    with pytest.raises(ArgumentTypeError, match=rf"was given {argument}=\[\]; pass a dict from"):
        ReplayCheckpoint("ours", **{argument: []})  # type: ignore[arg-type]


def test_a_regenerated_function_that_cannot_be_called_is_refused():
    with pytest.raises(ArgumentTypeError, match="was given 'order' and 3; pass a name and the"):
        ReplayCheckpoint("ours").regenerates("order", 3)  # type: ignore[arg-type]


def test_a_folder_without_a_checkpoint_is_refused(tmp_path):
    assert "does not exist: ReplayCheckpoint.save wrote no file" in refused(tmp_path)


@pytest.mark.parametrize("content", [b"", b"not a checkpoint", b"\xff" * 64])
def test_a_file_that_is_not_a_checkpoint_is_refused(folder, content):
    (folder / "replay-rank0.safetensors").write_bytes(content)
    assert "is not a replay checkpoint, or is damaged" in refused(folder)


@pytest.mark.parametrize("part", [0.3, 0.6, 0.999])
def test_a_file_with_a_flipped_bit_is_refused(folder, part):
    path = folder / "replay-rank0.safetensors"
    content = bytearray(path.read_bytes())
    content[int(len(content) * part)] ^= 1
    path.write_bytes(content)
    assert "damaged" in refused(folder)


@pytest.mark.parametrize("length", [10, 500, -1])
def test_a_truncated_file_is_refused(folder, length):
    path = folder / "replay-rank0.safetensors"
    path.write_bytes(path.read_bytes()[:length])
    assert "damaged" in refused(folder)


def test_an_invalid_generator_state_is_refused(folder):
    path = folder / "replay-rank0.safetensors"
    header, tensors = file.read(path)
    tensors["generators.torch cpu"] = torch.zeros(5056, dtype=torch.uint8)
    file.write(folder, header, tensors)
    assert "the generator 'torch cpu' cannot load its saved state (RuntimeError" in refused(folder)


def test_a_malformed_saved_state_is_refused(folder):
    path = folder / "replay-rank0.safetensors"
    header, tensors = file.read(path)
    for node in ({"tensor": "none such"}, {"list": 3}, {"dict": [[1]]}, {"a": 1, "b": 2}, [1]):
        header.states["counting"] = node
        file.write(folder, header, tensors)
        assert "is damaged: a state has the malformed entry" in refused(folder)


@pytest.mark.parametrize("known", [{}, {"uint32": (torch.uint32, torch.int16)}])
def test_an_unsigned_tensor_with_an_unexpected_encoding_is_refused(folder, monkeypatch, known):
    monkeypatch.setattr(file, "_SIGNED", known)
    assert "is damaged: it has no tensor " in refused(folder)


def test_saved_calls_with_a_final_but_no_initial_generator_state_are_refused(tmp_path):
    replay = ReplayCheckpoint("ours")
    replay.regenerates("order", lambda: torch.randperm(3))()
    replay.save(tmp_path, step=0)
    header, tensors = file.read(tmp_path / "replay-rank0.safetensors")
    header.regenerated["order"][0].after["none such"] = "8ec49623f8631951.0"
    file.write(tmp_path, header, tensors)
    with pytest.raises(ReplayError, match="is damaged: a generator has a state before the calls"):
        replay.load(tmp_path)


@pytest.mark.parametrize("generator", [object(), 3, random.SystemRandom(), torch.Generator])
def test_a_generator_without_a_readable_state_is_refused(generator):
    with pytest.raises(ArgumentTypeError, match="as the generator 'mine'; a generator must be"):
        ReplayCheckpoint("ours", generators={"mine": generator})


def test_reserved_and_non_text_generator_names_are_refused():
    with pytest.raises(ArgumentError, match="'numpy', which is reserved for a default"):
        ReplayCheckpoint("ours", generators={"numpy": torch.Generator()})
    with pytest.raises(ArgumentTypeError, match="under the name 3; a name must be a text"):
        ReplayCheckpoint("ours", generators={3: torch.Generator()})  # type: ignore[dict-item]


@pytest.mark.parametrize("program", ["", None, 3])
def test_the_program_name_must_be_a_non_empty_text(program):
    with pytest.raises(ArgumentTypeError, match=r"program=.*; pass a name, such as"):
        ReplayCheckpoint(program)


def test_a_state_without_state_dict_and_load_state_dict_is_refused():
    with pytest.raises(
        ArgumentTypeError, match="as the state 'sampler'; a state must be an object"
    ):
        ReplayCheckpoint("ours", states={"sampler": object()})  # type: ignore[dict-item]


def test_a_state_dict_that_contains_a_function_is_refused(tmp_path):
    class Sampler(Counting):
        def state_dict(self):
            return {"rows": [1, {"function": print}]}

    replay = ReplayCheckpoint("ours", states={"sampler": Sampler()})
    with pytest.raises(ArgumentTypeError, match=r"^states.sampler.rows.1.function is an object of"):
        replay.save(tmp_path, step=0)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("step", [-1, 1.0, True, None, 2**60])
def test_an_invalid_step_number_is_refused(tmp_path, step):
    with pytest.raises(ArgumentTypeError, match=r"step=.*; pass the number of the next step"):
        ReplayCheckpoint("ours").save(tmp_path, step=step)


@pytest.mark.parametrize("epoch", [0.5, "3", 2**64])
def test_an_invalid_counter_is_refused(tmp_path, epoch):
    with pytest.raises(ArgumentTypeError, match=r"epoch=.*; a counter must be an integer"):
        ReplayCheckpoint("ours").save(tmp_path, step=1, epoch=epoch)


def test_a_repeated_name_and_an_invalid_keep_of_regenerated_functions_are_refused():
    replay = ReplayCheckpoint("ours")
    replay.regenerates("order", lambda: None)
    with pytest.raises(ArgumentError, match="the name 'order' twice"):
        replay.regenerates("order", lambda: None)
    with pytest.raises(ArgumentError, match=r"keep='first'; pass 'last' if"):
        replay.regenerates("other", lambda: None, keep="first")  # type: ignore[arg-type]


def test_fast_forward_refuses_unregistered_functions_and_invalid_skips():
    replay = ReplayCheckpoint("ours")
    drawn = replay.regenerates("drawn", lambda: 3)
    with pytest.raises(ArgumentTypeError, match=r"object that ReplayCheckpoint\.regen"):
        fast_forward(lambda: None)  # type: ignore[arg-type]
    with pytest.raises(ArgumentTypeError, match=r"skip=.*; pass the number of items to skip"):
        fast_forward(drawn, skip=-1)
    drawn()
    with pytest.raises(ArgumentTypeError, match="returned 3, which has no items to skip"):
        fast_forward(drawn, skip=1)


def test_a_checkpoint_folder_outside_of_a_run_requires_a_root(tmp_path):
    with pytest.raises(ArgumentError, match="was created without a root; pass one"):
        ReplayCheckpoint("ours").folder(3)
    found = ReplayCheckpoint("ours", root=tmp_path).folder(3)
    assert found == tmp_path / "step-00000003"
    assert ReplayCheckpoint("ours").resume_folder() is None
