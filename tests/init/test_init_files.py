"""The first test imports its program as pytest can, and no file is overwritten."""

from pathlib import Path

import pytest

from pytest_trainsafe.init.axes import Axes
from pytest_trainsafe.init.files import create, path_of_test, text_of_test
from pytest_trainsafe.init.program import Found
from pytest_trainsafe.launch import Script
from pytest_trainsafe.sweep.marker import Declaration
from pytest_trainsafe.sweep.program import Program

AXES = Axes({"dp": ("ctx.group",)}, {"dp": [1, 2], "sp": [False, True]}, ("zero",))


def found(file: Path, path: str, *importable: Path, script: Script | None = None) -> Found:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()
    program = Program(path, str(file), script)
    return Found(Declaration(program), file, tuple(map(str, importable)))


def test_an_existing_file_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "test_train.py"

    assert create(path, "mine\n") == ""
    assert create(path, "other\n") == "it exists already"
    assert path.read_text() == "mine\n"
    assert create(tmp_path / "absent" / "file", "") == "No such file or directory"


def test_a_test_names_its_program_its_sweep_and_what_else_the_program_reads(
    tmp_path: Path,
) -> None:
    program = found(tmp_path / "pretrain.py", "pretrain:train")
    path = path_of_test(program, Path("elsewhere"))
    text = text_of_test(program, AXES, path)

    assert path == tmp_path / "test_pretrain.py"
    compile(text, str(path), "exec")
    assert "from pretrain import train\n" in text
    assert "@pytest.mark.trainsafe(train, dp=[1, 2], sp=[False, True])\n" in text
    assert "# The program also reads or names zero: add what it supports.\n" in text
    assert "def test_pretrain_trains_like_one_device(candidate_trace, reference_trace):" in text


@pytest.mark.parametrize("name", ["Trainer.train", "test_train"])
def test_a_function_that_cannot_be_imported_by_its_name_alone_is_given_by_its_path(
    tmp_path: Path, name: str
) -> None:
    program = found(tmp_path / "pretrain.py", f"pretrain:{name}")
    text = text_of_test(program, AXES, path_of_test(program, tmp_path))

    assert f'@pytest.mark.trainsafe("pretrain:{name}", dp=' in text


def test_the_module_is_named_as_pytest_finds_it_from_the_test(tmp_path: Path) -> None:
    """pytest puts the first folder above a test without `__init__.py` on the path."""
    plain = found(tmp_path / "tools" / "run.py", "tools.run:train")
    installed = found(tmp_path / "tools" / "run.py", "tools.run:train", tmp_path)
    package = found(tmp_path / "pkg" / "run.py", "pkg.run:train")
    (tmp_path / "pkg" / "__init__.py").touch()

    for program, line in (
        (plain, "from run import train"),
        (installed, "from tools.run import train"),
        (package, "from pkg.run import train"),
    ):
        assert line in text_of_test(program, AXES, path_of_test(program, tmp_path))


def test_a_script_is_found_beside_its_test_wherever_pytest_is_started(tmp_path: Path) -> None:
    script = Script("runs/pre-train.py")
    program = found(tmp_path / "runs" / "pre-train.py", script.path, script=script)
    path = path_of_test(program, tmp_path)
    text = text_of_test(program, AXES, path)

    assert path == tmp_path / "runs" / "test_pre_train.py"
    compile(text, str(path), "exec")
    assert 'Script(str(Path(__file__).with_name("pre-train.py"))), dp=[1, 2]' in text


def test_the_test_of_an_installed_program_is_written_where_pytest_is_started(
    tmp_path: Path,
) -> None:
    program = found(tmp_path / "site-packages" / "lib.py", "lib:train", tmp_path / "site-packages")

    assert path_of_test(program, tmp_path / "here") == tmp_path / "here" / "test_lib.py"
    assert "from lib import train" in text_of_test(program, AXES, tmp_path / "here" / "test_lib.py")


def test_a_test_is_written_where_pytest_collects_if_it_can_import_its_program_there(
    tmp_path: Path,
) -> None:
    tests = tmp_path / "tests"
    tests.mkdir()
    reached = found(tmp_path / "src" / "run.py", "run:train", tmp_path / "src")
    unreached = found(tmp_path / "src" / "run.py", "run:train")
    among = found(tests / "run.py", "run:train")
    paths = [tmp_path / "absent", tests]

    assert path_of_test(reached, tmp_path, paths) == tests / "test_run.py"
    assert path_of_test(unreached, tmp_path, paths) == tmp_path / "src" / "test_run.py"
    assert path_of_test(among, tmp_path, paths) == tests / "test_run.py"
    assert (
        path_of_test(reached, tmp_path, [tmp_path / "absent"]) == tmp_path / "src" / "test_run.py"
    )
    assert "from run import train" in text_of_test(reached, AXES, tests / "test_run.py")
