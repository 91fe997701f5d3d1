"""Files that a program opens for reading are noted; its own outputs and Python's files are not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy
import pytest
import torch
import yaml
from torch.utils.data import DataLoader

from pytest_trainsafe.record.reads import notes as notes_module
from pytest_trainsafe.record.reads.notes import Notes, stamp
from pytest_trainsafe.record.reads.noting import Noting


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory of a program; the notes of forked processes are elsewhere."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (folder / "data.txt").write_text("1.0\n")
    (folder / "recipe.yaml").write_text("factor: 1.0\n")
    (folder / "extra.py").write_text("FACTOR = 1.0\n")
    numpy.save(folder / "array.npy", numpy.ones(2))
    numpy.ones(2).tofile(folder / "raw.bin")
    torch.save(torch.ones(2), folder / "tensor.pt")
    return folder


def noted(folder: Path, program: Callable[[], object]) -> Notes:
    noting = Noting(folder.parent / "forked")
    with noting.noted(own=(str(folder.parent / "own"),)):
        program()
    return noting.notes()


def inputs(folder: Path, program: Callable[[], object]) -> set[str]:
    """The inputs of a program, relative to its folder."""
    notes = noted(folder, program)
    assert notes.incomplete == ""
    return {os.path.relpath(path, folder) for path in notes.inputs()}


def open_and_close(path: str | bytes, mode: str) -> None:
    with open(path, mode):
        pass


def load_yaml() -> None:
    with open("recipe.yaml") as file:
        yaml.safe_load(file)


def execute() -> None:
    exec(Path("extra.py").read_text(), {})  # noqa: S102


def load_from_location() -> None:
    from importlib.util import module_from_spec, spec_from_file_location

    spec = spec_from_file_location("extra", "extra.py")
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(module_from_spec(spec))


READS: dict[str, tuple[Callable[[], object], str]] = {
    "open": (lambda: open_and_close("data.txt", "r"), "data.txt"),
    "open as bytes": (lambda: open_and_close(b"data.txt", "rb"), "data.txt"),
    "open to update": (lambda: open_and_close("data.txt", "r+"), "data.txt"),
    "os.open": (lambda: os.close(os.open("data.txt", os.O_RDONLY)), "data.txt"),
    "Path.read_text": (lambda: Path("data.txt").read_text(), "data.txt"),
    "Path.read_bytes": (lambda: Path("../project/data.txt").read_bytes(), "data.txt"),
    "yaml": (load_yaml, "recipe.yaml"),
    "np.load": (lambda: numpy.load("array.npy"), "array.npy"),
    "np.memmap": (lambda: numpy.memmap("raw.bin", mode="r"), "raw.bin"),
    "np.memmap to update": (lambda: numpy.memmap("raw.bin"), "raw.bin"),
    "np.fromfile": (lambda: numpy.fromfile("raw.bin"), "raw.bin"),
    "torch.load": (lambda: torch.load("tensor.pt"), "tensor.pt"),
    "torch.load with mmap": (lambda: torch.load("tensor.pt", mmap=True), "tensor.pt"),
    "shutil.copy": (lambda: shutil.copy("data.txt", "copy.txt"), "data.txt"),
    "exec": (execute, "extra.py"),
    "a module loaded from its location": (load_from_location, "extra.py"),
}


@pytest.mark.parametrize("how", READS)
def test_a_file_that_is_opened_for_reading_is_noted(folder: Path, how: str) -> None:
    program, name = READS[how]
    assert inputs(folder, program) == {name}


def test_a_module_that_is_loaded_from_its_bytecode_is_noted(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    load_from_location()
    assert list(folder.glob("__pycache__/*.pyc"))
    assert inputs(folder, load_from_location) == {"extra.py"}


def test_a_file_that_does_not_exist_yet_is_noted(folder: Path) -> None:
    def program() -> None:
        with pytest.raises(FileNotFoundError):
            Path("later.txt").read_text()

    assert noted(folder, program).inputs() == {str(folder / "later.txt"): ""}


def test_a_file_in_shared_memory_is_noted_and_devices_are_not(folder: Path) -> None:
    def program() -> None:
        with open("/dev/zero", "rb") as zeros:
            zeros.read(1)
        Path(name).read_text()

    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
        name = file.name
        assert set(noted(folder, program).inputs()) == {name}


def test_a_file_is_noted_as_it_was_before_the_program_changed_it(folder: Path) -> None:
    before = stamp(str(folder / "data.txt"))

    def program() -> None:
        count = float(Path("data.txt").read_text())
        Path("data.txt").write_text(f"{count + 1:.3f}\n")

    assert noted(folder, program).inputs() == {str(folder / "data.txt"): before}


class Files(torch.utils.data.Dataset[float]):
    """A dataset whose workers read a file and write a log."""

    def __len__(self) -> int:
        """One example."""
        return 1

    def __getitem__(self, index: int) -> float:
        """Reads the example."""
        Path("log.txt").write_text("read")
        Path("log.txt").read_text()
        return float(Path("data.txt").read_text()) * len(os.environ["HOME"])


def test_files_that_forked_workers_of_a_data_loader_read_are_noted(folder: Path) -> None:
    loader = DataLoader(Files(), num_workers=1, multiprocessing_context="fork")

    notes = noted(folder, lambda: list(loader))

    # Python reads the source of a line that it warns about.
    assert set(notes.inputs()) - {__file__} == {str(folder / "data.txt")}
    assert notes.variables == ("HOME",)


def own_output() -> None:
    Path("out.txt").write_text("x")
    Path("out.txt").read_text()


def own_checkpoint() -> None:
    torch.save(torch.ones(2), "saved.pt")
    torch.load("saved.pt")


def own_renamed() -> None:
    Path("out.tmp").write_text("x")
    os.replace("out.tmp", "out.txt")
    Path("out.txt").read_text()


def own_renamed_folder() -> None:
    Path("step.tmp").mkdir()
    Path("step.tmp/out.txt").write_text("x")
    os.rename("step.tmp", "step")
    Path("step/out.txt").read_text()


def own_folder_of_another_process() -> None:
    Path("made").mkdir()
    subprocess.run(["cp", "data.txt", "made/data.txt"], check=True)
    Path("made/data.txt").read_text()


def temporary() -> None:
    with tempfile.TemporaryDirectory(dir=".") as name:
        Path(name, "x").write_text("x")
        Path(name, "x").read_text()
    with tempfile.NamedTemporaryFile(dir=".") as file:
        Path(file.name).read_bytes()


def pythons_own() -> None:
    Path("/proc/self/status").read_text()
    Path(os.__file__).read_text()
    Path(torch.__file__).read_text()
    assert Path("../own/trace.txt").resolve().read_text()


@pytest.mark.parametrize(
    "program",
    [
        *(own_output, own_checkpoint, own_renamed, own_renamed_folder),
        *(own_folder_of_another_process, temporary, pythons_own),
    ],
)
def test_what_the_program_wrote_and_files_of_python_are_not_noted(
    folder: Path, program: Callable[[], object]
) -> None:
    (folder.parent / "own").mkdir()
    (folder.parent / "own/trace.txt").write_text("x")
    assert inputs(folder, program) == set()


def test_a_file_in_a_folder_that_existed_before_is_noted(folder: Path) -> None:
    (folder / "data").mkdir()
    (folder / "data/one.txt").write_text("x")

    def program() -> None:
        Path("data").mkdir(exist_ok=True)
        Path("data/one.txt").read_text()

    assert inputs(folder, program) == {"data/one.txt"}


def test_nothing_is_noted_after_the_program(folder: Path) -> None:
    noting = Noting(folder.parent / "forked")
    with noting.noted(own=()):
        pass
    Path("data.txt").read_text()
    assert noting.notes().inputs() == {}


def test_more_files_than_the_limit_are_incomplete(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pytest_trainsafe.record.reads.noting.LIMIT", 1)
    assert noted(folder, lambda: Path("data.txt").read_text()).incomplete == ""

    def program() -> None:
        Path("data.txt").read_text()
        Path("recipe.yaml").read_text()

    assert noted(folder, program).incomplete == notes_module.too_many()


def test_a_name_that_is_no_text_is_incomplete(folder: Path) -> None:
    (folder / os.fsdecode(b"\xff.txt")).write_text("x")
    notes = noted(folder, lambda: Path(os.fsdecode(b"\xff.txt")).read_text())
    assert notes.incomplete == "the name of a file or variable is not valid UTF-8"
