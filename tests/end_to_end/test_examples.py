"""The examples of the documentation pass, and changes that break `own_model` are reported."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.support.end_to_end import inner_pytest

#: The first test starts its own fork server, as a user's run does.
shared = pytest.mark.usefixtures("shared_fork_server")

EXAMPLE = Path(__file__).parents[2] / "docs/examples/own_model"


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    plugins = ("-p", "no:hypothesispytest", "-p", "no:cacheprovider")
    # The first test has ranks that are processes, which take more CPU.
    quick = ("--trainsafe-dtype=float64", "--trainsafe-launcher=threads", *plugins)
    return inner_pytest.forked([f"--basetemp={folder.parent}/base", *quick, *options], folder)


def copied(tmp_path: Path) -> Path:
    """Copy the example to its own folder, as a user would."""
    folder = tmp_path / "own_model"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "pytest.ini").write_text("[pytest]\n")
    return folder


def test_the_own_model_example_passes(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pytest", f"--basetemp={tmp_path}/base"]
    done = inner_pytest.captured([*command, "--trainsafe-dtype=float64"], copied(tmp_path))
    assert done.returncode == 0, done.stdout
    assert "4 passed" in done.stdout


@shared
def test_a_package_passes_with_the_import_mode_that_leaves_the_path_as_it_is(
    tmp_path: Path,
) -> None:
    """As `pytest docs/examples/own_model` in a clone of this repository."""
    folder = copied(tmp_path)
    (folder / "pytest.ini").unlink()
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib\n")
    done = run(tmp_path, "own_model", "--trainsafe-sweep", "tp=2", "dp=1")
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


@shared
def test_annotations_of_the_example_are_written_into_an_empty_file(tmp_path: Path) -> None:
    """The first run writes those of parameters, by shape; the second those of modules, by value."""
    folder = copied(tmp_path)
    layouts = folder / "layouts.yaml"
    whole = yaml.safe_load(layouts.read_text())
    layouts.write_text("")
    options = ("--trainsafe-sweep", "tp=2", "dp=1", "--trainsafe-annotate")

    first = inner_pytest.flat(run(folder, *options).stdout)
    assert (
        "6 parameters are sharded, as their shapes show, but were initialized as if every rank"
        in first
    )
    assert "not localised" not in first
    assert yaml.safe_load(layouts.read_text()) == {"parameters": whole["parameters"]}
    second = inner_pytest.flat(run(folder, *options, "--trainsafe-localize=off").stdout)
    assert "4 tensors lack an annotation, or part of one: with these annotations" in second
    assert yaml.safe_load(layouts.read_text()) == whole
    assert "1 passed" in run(folder, *options).stdout


@shared
def test_a_wrong_annotation_is_reported_and_no_code_is_named_at_fault(tmp_path: Path) -> None:
    folder = copied(tmp_path)
    layouts = folder / "layouts.yaml"
    text = layouts.read_text()
    layouts.write_text(text.replace("up: {output: {tp_dim: -1}}", "up: {output: {tp_dim: 1}}"))

    output = inner_pytest.flat(run(folder, "--trainsafe-sweep", "tp=2", "dp=1").stdout)

    assert "declared modules: up declares dimension 1 cut over tp, but the parts of" in output
    assert "they fit dimension 2 cut over tp" in output
    assert "faulty" not in output
    line = 1 + layouts.read_text().splitlines().index("  up: {output: {tp_dim: 1}}")
    assert f"layouts.yaml:{line}" in output.partition("look at ")[2].split(" ")[0]


@shared
def test_a_missing_all_reduce_in_backward_is_reported_as_partial_sums(tmp_path: Path) -> None:
    folder = copied(tmp_path)
    model = folder / "model.py"
    kept, summed, rest = model.read_text().partition(
        "        dist.all_reduce(grad, group=ctx.group)\n"
    )
    assert summed
    model.write_text(kept + rest)

    done = run(folder, "--trainsafe-sweep", "tp=2", "dp=1", "--trainsafe-localize=off")

    assert "1 failed" in done.stdout
    output = inner_pytest.flat(done.stdout)
    assert "starts at blocks.1.norm.output · activation_grad · step 0" in output
    assert "the ranks of tp hold partial sums: rank0 + rank1 equals the reference" in output


@shared
def test_a_collective_that_reduces_no_gradient_is_not_named_as_the_reduction(
    tmp_path: Path,
) -> None:
    """In place of the gradient reduction, an all-reduce adds up the losses, for a log."""
    folder = copied(tmp_path)
    program = folder / "train.py"
    text = program.read_text()
    reduction = 'dist.all_reduce(parameter.grad, group=ctx.group("dp"))'
    logged = 'dist.all_reduce(torch.stack([loss.detach()] * 2), group=ctx.group("dp"))'
    assert reduction in text
    program.write_text(text.replace(reduction, logged))

    output = inner_pytest.flat(run(folder, "--trainsafe-sweep", "tp=1", "dp=2").stdout)

    assert "the gradient reduction of all 15 parameters is wrong" in output
    assert "reduced by" not in output
    [step] = [n for n, line in enumerate(text.splitlines(), 1) if "optimizer.step()" in line]
    assert f"no call between it and the optimizer's step at train.py:{step} sums" in output


@shared
def test_a_wrong_gradient_reduction_is_reported_with_its_line(tmp_path: Path) -> None:
    folder = copied(tmp_path)
    program = folder / "train.py"
    call = 'dist.all_reduce(parameter.grad, group=ctx.group("dp"))'
    lines = program.read_text().splitlines()
    [number] = [number for number, line in enumerate(lines, 1) if call in line]
    lines[number - 1] += "; parameter.grad /= dist.get_world_size(ctx.group('dp'))"
    program.write_text("\n".join(lines))

    done = run(folder, "--trainsafe-sweep", "tp=1", "dp=2")

    output = inner_pytest.flat(done.stdout)
    assert "the gradients of all 15 parameters are changed between their backward and" in output
    assert f"reduced by all_reduce(SUM) over dp at train.py:{number}" in output
    assert f"look at train.py:{number} (changes gradients by div_)" in output


@pytest.mark.slow
def test_the_whole_folder_of_examples_passes_with_one_command(tmp_path: Path) -> None:
    shutil.copytree(EXAMPLE.parent, tmp_path / "docs" / "examples")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", f"--basetemp={tmp_path}/base", "docs/examples"]

    done = inner_pytest.captured(command, tmp_path)

    assert done.returncode == 0, done.stdout
    tests = [*EXAMPLE.parent.rglob("test_*.py")]
    assert len(tests) > 5
    assert [test.name for test in tests if test.name not in done.stdout] == []


@shared
def test_examples_with_modules_of_one_name_pass_together(tmp_path: Path) -> None:
    folder = tmp_path / "examples"
    for name in ("dropout", "metamorphic", "per_example"):
        shutil.copytree(EXAMPLE.parent / name, folder / name)
    (folder / "pytest.ini").write_text("[pytest]\n")
    # Of the relations one: Runs with variables of their own are not forked.  The others are in
    # tests/judges/metamorphic/test_relations_example.py.
    one = ("-k", "not order and not padding and not loss-scale")

    done = run(folder, "--trainsafe-launcher=auto", "--trainsafe-localize=off", *one)

    assert done.returncode == 0, done.stdout
    assert "8 passed" in done.stdout


@shared
def test_the_resume_example_passes(tmp_path: Path) -> None:
    folder = tmp_path / "resume"
    shutil.copytree(EXAMPLE.parent / "resume", folder)
    (folder / "pytest.ini").write_text("[pytest]\n")

    done = run(folder, "--trainsafe-launcher=auto", "--trainsafe-localize=off")

    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout
