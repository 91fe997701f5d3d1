"""A program is refused if two files have the name of its module; the message names both."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from pytest_trainsafe.errors import InvalidProgramError
from pytest_trainsafe.sweep.namesakes import refuse_other_file_in_ranks

TRAIN = "def train(ctx, heads=4):\n    raise AssertionError('nothing here is trained')\n"

TEST = """
import pytest
{imports}

@pytest.mark.trainsafe({program}, tp=[1, 2])
def test_{name}(candidate_trace):
    candidate_trace.at("float64")
"""

FUZZ = """
from pytest_trainsafe import trainsafe_fuzz
from train import train

@trainsafe_fuzz(train, tp=[1, 2])
def test_{name}(candidate_trace): ...
"""


def marked(name, imports="from train import train", program="train"):
    return TEST.format(name=name, imports=imports, program=program)


@pytest.fixture
def folders(project):
    """Write files into the project, and run pytest on them in a process of its own."""

    def run(files, *options):
        for name, text in files.items():
            path = project.path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return project.runpytest_subprocess(*options)

    return run


def flat(result):
    return " ".join(result.stdout.str().split())


@pytest.mark.parametrize(
    "second",
    [marked("b"), marked("b", imports="", program="'train:train'"), FUZZ.format(name="b")],
    ids=["function", "import path", "fuzz"],
)
def test_the_program_of_another_folder_is_refused_with_both_files(folders, second):
    files = {
        "a/train.py": TRAIN,
        "a/test_a.py": marked("a"),
        "b/train.py": TRAIN,
        "b/test_b.py": second,
    }

    result = folders(files, "--collect-only")

    result.assert_outcomes(errors=1)
    text = flat(result)
    assert "the test has a/train.py as the module 'train', but the file beside the test is" in text
    assert "b/train.py" in text
    assert "put an empty __init__.py into each and write `from .train import train`" in text


def test_a_module_that_a_program_imports_from_another_folder_is_refused(folders):
    program = "from model import Model\n" + TRAIN
    files = {
        f"{name}/{file}": text
        for name in "ab"
        for file, text in {
            "model.py": "class Model: ...",
            f"program_{name}.py": program,
            f"test_{name}.py": marked(name, f"from program_{name} import train"),
        }.items()
    }

    result = folders(files, "--collect-only")

    result.assert_outcomes(errors=1)
    assert "program 'program_b:train': the test has a/model.py as the module 'model'" in flat(
        result
    )


def test_programs_of_one_name_in_packages_are_collected(folders):
    files = {
        f"{name}/{file}": text
        for name in "ab"
        for file, text in {
            "__init__.py": "",
            "train.py": TRAIN,
            f"test_{name}.py": marked(name, "from .train import train"),
        }.items()
    }

    folders(files, "--collect-only").stdout.fnmatch_lines(["*4 tests collected*"])


def test_a_file_that_python_does_not_find_under_the_name_is_no_namesake(folders):
    """The module of `tests/train.py` is `tests.train`, because `tests` is a package."""
    files = {
        "train.py": TRAIN,
        "tests/__init__.py": "",
        "tests/train.py": TRAIN,
        "tests/test_a.py": marked("a"),
    }

    folders(files, "--collect-only").stdout.fnmatch_lines(["*2 tests collected*"])


def test_a_namesake_that_the_ranks_would_import_is_refused_before_they_start(folders):
    files = {
        "a/train.py": TRAIN,
        "a/test_a.py": marked("a"),
        "b/train.py": TRAIN,
        "b/test_b.py": "def test_b(): ...",
    }

    result = folders(files)

    result.assert_outcomes(passed=1, failed=2)
    text = flat(result)
    assert "the tests have a/train.py as the module 'train', but the ranks would import" in text
    assert "b/train.py" in text
    assert "nothing here is trained" not in text


def test_a_folder_behind_that_of_the_program_is_no_obstacle(tmp_path, monkeypatch):
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "namesake_program.py").write_text(TRAIN)
        (tmp_path / name / "conftest.py").write_text(TRAIN)
    monkeypatch.syspath_prepend(tmp_path / "b")
    monkeypatch.syspath_prepend(tmp_path / "a")
    conftest = ModuleType("conftest")
    conftest.__file__ = str(tmp_path / "b" / "conftest.py")
    monkeypatch.setitem(sys.modules, "conftest", conftest)
    import namesake_program  # type: ignore[import-not-found]

    monkeypatch.setitem(sys.modules, "namesake_program", namesake_program)
    refuse_other_file_in_ranks("namesake_program:train")
    refuse_other_file_in_ranks("conftest:train")  # many folders have one

    monkeypatch.syspath_prepend(tmp_path / "b")
    with pytest.raises(InvalidProgramError, match="the ranks would import"):
        refuse_other_file_in_ranks("namesake_program:train")
