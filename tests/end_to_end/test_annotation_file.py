"""The annotation file of a program: one that is missing is made, a misspelt entry is named."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.end_to_end import inner_pytest

pytestmark = pytest.mark.usefixtures("shared_fork_server")

EXAMPLE = Path(__file__).parents[2] / "docs/examples/own_model"

ANNOTATE = "--trainsafe-annotate"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name in ("model.py", "train.py"):
        text = (EXAMPLE / name).read_text().replace("from .model", "from model")
        (tmp_path / name).write_text(text)
    shutil.copy(EXAMPLE / "layouts.yaml", tmp_path)
    return tmp_path


TEST = """
import pytest
from train import train
from pytest_trainsafe import assert_trainsafe

@pytest.mark.trainsafe(train, tp=[1, 2], args={"layers": 1})
def test_it(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)
"""


def run(project: Path, *options: str) -> str:
    return inner_pytest.flat(inner_pytest.run(project, TEST, "--no-header", *options).stdout)


def test_a_missing_file_is_made_and_filled_until_the_test_passes(project: Path) -> None:
    file = project / "layouts.yaml"
    whole = file.read_text().partition("\n")[2]
    file.unlink()

    first = run(project, ANNOTATE)

    assert "1 failed, 1 passed" in first
    assert "note: layouts.yaml did not exist, and was made" in first
    assert "they were added to layouts.yaml" in first
    assert "no Run finished" not in first
    assert "1 failed, 1 passed" in run(project, ANNOTATE)
    assert "2 passed" in run(project, ANNOTATE)
    assert file.read_text().partition("\n")[2] == whole


def test_no_file_is_made_without_the_option_or_beside_one_with_a_similar_name(
    project: Path,
) -> None:
    file = project / "layouts.yaml"
    file.rename(project / "layout.yaml")
    assert "there is no such file; did you mean 'layout.yaml'?" in run(project, ANNOTATE)
    assert not file.exists()

    (project / "layout.yaml").unlink()
    said = run(project)
    assert "If there is none yet, `pytest --trainsafe-annotate` makes it" in said
    assert not file.exists()


def test_a_fault_beside_a_misspelt_entry_is_reported_and_no_other_code_is_blamed(
    project: Path,
) -> None:
    file, model = project / "layouts.yaml", project / "model.py"
    file.write_text(file.read_text().replace("activation:", "activaton:"))
    model.write_text(model.read_text().replace("        dist.all_reduce(total, group", "        #"))

    said = run(project, "--trainsafe-sweep", "tp=2", "--trainsafe-localize=60")

    assert "differs from its single-device reference, and the annotation `modules: activ" in said
    assert "did you mean 'activation'? If so, correct it" in said
    assert "look at layouts.yaml:8 (the entry)" in said
    assert "starts at blocks.0.down.output" in said
    assert "so an all-reduce over tp is missing for this activation" in said
    assert "look at model.py:64 (forward of module class RowParallel)" in said
    assert "not localised" in said
    assert "faulty" not in said


def test_after_a_fault_the_layouts_of_later_layers_are_those_of_the_first(project: Path) -> None:
    file, model, test = project / "layouts.yaml", project / "model.py", TEST.replace("1}", "2}")
    whole = file.read_text()
    file.write_text(whole.partition("modules:")[0])
    model.write_text(model.read_text().replace("        dist.all_reduce(total, group", "        #"))
    options = (ANNOTATE, "--trainsafe-sweep", "tp=2", "--trainsafe-localize=60")

    said = inner_pytest.flat(inner_pytest.run(project, test, *options).stdout)

    assert "reference, and layouts are missing for 4 modules" in said
    assert file.read_text() == whole
    assert "blocks.1.up.output: no layout" not in said
    assert "(class RowParallel)" in said
    assert "(class ColumnParallel): given equal inputs" not in said
    assert "look at model.py:64 (forward of module class RowParallel)" in said
