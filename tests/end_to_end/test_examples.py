"""The example that the documents lead to passes as it stands, and finds what is taken out of it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import inner_pytest
import pytest
import yaml

#: The first test starts a fork server of its own, as a user does.
shared = pytest.mark.usefixtures("shared_fork_server")

EXAMPLE = Path(__file__).parents[2] / "docs/examples/own_model"


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    plugins = ("-p", "no:hypothesispytest", "-p", "no:cacheprovider")
    quick = ("--trainsafe-dtype=float64", *plugins)
    base = f"--basetemp={folder.parent}/base"
    command = [sys.executable, "-m", "pytest", base, *quick, *options]
    return inner_pytest.captured(command, folder)


def copied(tmp_path: Path) -> Path:
    """The example in a folder of its own, as a user would take it."""
    folder = tmp_path / "own_model"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "pytest.ini").write_text("[pytest]\n")
    return folder


def test_a_model_with_parallelism_of_its_own_passes(tmp_path: Path) -> None:
    done = run(copied(tmp_path))
    assert done.returncode == 0, done.stdout
    assert "4 passed" in done.stdout


@shared
def test_its_annotations_are_written_into_an_empty_file(tmp_path: Path) -> None:
    """First by the shapes of parameters, then, with these filled right, by values."""
    folder = copied(tmp_path)
    layouts = folder / "layouts.yaml"
    whole = yaml.safe_load(layouts.read_text())
    layouts.write_text("")
    options = ("--trainsafe-sweep", "tp=2", "dp=1", "--trainsafe-annotate")

    first = inner_pytest.flat(run(folder, *options).stdout)
    assert "by their shapes 6 parameters are cut, and were filled as if every rank held" in first
    assert "not localised" not in first
    assert yaml.safe_load(layouts.read_text()) == {"parameters": whole["parameters"]}
    second = inner_pytest.flat(run(folder, *options).stdout)
    assert "4 tensors lack an annotation, or part of one: with what follows all" in second
    assert yaml.safe_load(layouts.read_text()) == whole
    assert "1 passed" in run(folder, *options).stdout


@shared
def test_a_wrong_annotation_is_not_blamed_on_the_code(tmp_path: Path) -> None:
    folder = copied(tmp_path)
    layouts = folder / "layouts.yaml"
    text = layouts.read_text()
    layouts.write_text(text.replace("up: {output: {tp_dim: -1}}", "up: {output: {tp_dim: 1}}"))

    told = inner_pytest.flat(run(folder, "--trainsafe-sweep", "tp=2", "dp=1").stdout)

    assert "declared modules: up says dimension 1 cut over tp, which the parts of" in told
    assert "they fit dimension 2 cut over tp" in told
    assert "faulty" not in told
    assert "look at" not in told


@shared
def test_a_sum_that_is_taken_out_of_it_is_found(tmp_path: Path) -> None:
    folder = copied(tmp_path)
    model = folder / "model.py"
    kept, summed, rest = model.read_text().partition(
        "        dist.all_reduce(grad, group=ctx.group)\n"
    )
    assert summed
    model.write_text(kept + rest)

    done = run(folder, "--trainsafe-sweep", "tp=2", "dp=1")

    assert "1 failed" in done.stdout
    told = inner_pytest.flat(done.stdout)
    assert "starts at blocks.1.norm.output · activation_grad · step 0" in told
    assert "the ranks of tp hold partial sums: rank0 + rank1 equals the reference" in told


@shared
def test_a_collective_that_reduces_no_gradient_is_not_looked_at(tmp_path: Path) -> None:
    """The reduction is missing; what is there adds up the losses, for a log."""
    folder = copied(tmp_path)
    program = folder / "train.py"
    text = program.read_text()
    reduction = 'dist.all_reduce(parameter.grad, group=ctx.group("dp"))'
    logged = 'dist.all_reduce(torch.stack([loss.detach()] * 2), group=ctx.group("dp"))'
    assert reduction in text
    program.write_text(text.replace(reduction, logged))

    told = inner_pytest.flat(run(folder, "--trainsafe-sweep", "tp=1", "dp=2").stdout)

    assert "the gradient reduction is wrong of all 15 parameters" in told
    assert "reduced by" not in told
    [step] = [n for n, line in enumerate(text.splitlines(), 1) if "optimizer.step()" in line]
    assert f"look at train.py:{step} (steps the optimizer)" in told


@shared
def test_a_reduction_that_is_wrong_is_named_with_its_line(tmp_path: Path) -> None:
    folder = copied(tmp_path)
    program = folder / "train.py"
    call = 'dist.all_reduce(parameter.grad, group=ctx.group("dp"))'
    lines = program.read_text().splitlines()
    [number] = [number for number, line in enumerate(lines, 1) if call in line]
    lines[number - 1] += "; parameter.grad /= dist.get_world_size(ctx.group('dp'))"
    program.write_text("\n".join(lines))

    done = run(folder, "--trainsafe-sweep", "tp=1", "dp=2")

    told = inner_pytest.flat(done.stdout)
    assert "the gradient reduction is wrong of all 15 parameters" in told
    assert f"reduced by all_reduce(SUM) over dp at train.py:{number}" in told
    assert f"look at train.py:{number} (all_reduce(SUM) over dp)" in told


@shared
def test_the_examples_with_dropout_pass(tmp_path: Path) -> None:
    folder = tmp_path / "examples"
    for name in ("dropout", "per_example"):
        shutil.copytree(EXAMPLE.parent / name, folder / name)
    (folder / "pytest.ini").write_text("[pytest]\n")

    done = run(folder, "--trainsafe-localize=off")

    assert done.returncode == 0, done.stdout
    assert "7 passed" in done.stdout
