"""A project whose tests fail in the ways that the page of a run shows, each in a real run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.exact.proved_program import PROGRAM

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"

#: The tests of the project: what each shows, and its name.
TESTS = """
import pytest
import torch.distributed as dist
from drops import train as drops
from proved import train as proved
from resumed import train as resumed

from pytest_trainsafe import (
    assert_proved_equivalent, assert_refines, assert_resumable, assert_rng, assert_trainsafe,
)
from pytest_trainsafe.reference_models import gpt


@pytest.mark.trainsafe(gpt.train, tp=[1, 2], cp=[1, 2], dtype=["float64"], args={"layers": 1})
def test_clean(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.trainsafe(
    gpt.train, tp=[1, 2], sp=[True, False], dtype=["float64"], args={"layers": 1},
    candidate_args={"bug": "sp-layernorm-grads"},
)
def test_unreduced(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.trainsafe(
    gpt.train, tp=2, dtype=["float64"], args={"layers": 1},
    candidate_args={"bug": "tp-embedding-mask"},
)
def test_mask(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.trainsafe(drops, dp=[2], args={"one_seed": True}, dtype=["float64"])
def test_drops(candidate_trace):
    assert_rng(candidate_trace)


@pytest.mark.trainsafe(resumed, dp=[2], args={"forgotten": "the random numbers"})
def test_resumed(candidate_trace):
    assert_resumable(candidate_trace, at_step=4, steps=7)


@pytest.mark.trainsafe(proved, tp=[2])
def test_proof(candidate_trace, reference_trace):
    assert_proved_equivalent(candidate_trace, reference_trace)


@pytest.mark.trainsafe(proved, tp=[2], candidate_args={"bug": "unreduced"})
def test_refutation(candidate_trace, reference_trace):
    assert_proved_equivalent(candidate_trace, reference_trace)


def test_graphs():
    assert_refines("sequential.fx.txt", ["rank.fx.txt"] * 2, "relation.yaml")


def skip_a_collective():
    import torch

    dist.init_process_group("gloo")
    for _ in range(3):
        dist.all_reduce(torch.ones(4))
    if dist.get_rank() != 1:
        dist.all_reduce(torch.ones(8))
    dist.barrier()


def test_hang(torchrun_group):
    torchrun_group.run(skip_a_collective, world_size=3)
"""

#: The outcomes of the tests, as pytest counts them.
PASSED, FAILED, SKIPPED = 8, 6, 1


def write_project(folder: Path) -> None:
    """Writes the programs and the tests into a folder."""
    (folder / "proved.py").write_text(PROGRAM)
    for name, source in (("drops", "dropout/train.py"), ("resumed", "resume/resumed.py")):
        (folder / f"{name}.py").write_text((EXAMPLES / source).read_text())
    for name in ("sequential.fx.txt", "rank.fx.txt", "relation.yaml"):
        (folder / name).write_text((EXAMPLES / "refine" / name).read_text())
    (folder / "test_shown.py").write_text(TESTS)
    (folder / "pytest.ini").write_text("[pytest]\npythonpath = .\n")


#: Options for little time: ranks share a process, nothing is localised.
QUICK = (
    *("-p", "no:hypothesispytest", "-p", "no:syrupy"),
    *("--trainsafe-launcher=threads", "--trainsafe-localize=off"),
)


def run_project(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Runs the tests in a folder, with the options QUICK; returns what pytest printed."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", *QUICK, f"--basetemp={folder}/base", *options],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=1_800,
        check=False,
    )
