"""What DeepSpeed 0.19.8 gets silently wrong, each an expected failure: one that passes was mended.

Then its entry, its reproduction and its section of docs/upstream/deepspeed.md can go.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from deepspeed_programs import DIFFERENT, Different, Unsupported, run_script

from pytest_trainsafe import assert_trainsafe
from pytest_trainsafe.assertions import TrainsafeFailure
from pytest_trainsafe.launch import GroupFailure
from pytest_trainsafe.reference_models import deepspeed_gpt, deepspeed_open
from pytest_trainsafe.reference_models.deepspeed_open import conditional

pytest.importorskip("deepspeed")

pytestmark = pytest.mark.slow

PROGRAMS = {"conditional": conditional.train, "gpt": deepspeed_gpt.train}

REPRODUCTIONS = Path(__file__).parents[2] / "docs" / "upstream" / "deepspeed"


def run_at(name: str, where: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The marker of a test of an entry, at the Point `where` it is wrong or `right`."""
    entry = deepspeed_open.find(name)
    return pytest.mark.trainsafe(
        PROGRAMS[entry.program],
        args=dict(entry.arguments),
        candidate_args=dict(entry.candidate_arguments),
        **getattr(entry, where),
    )


wrong = pytest.mark.xfail(strict=True, raises=TrainsafeFailure, reason="open in DeepSpeed 0.19.8")


def judge(name: str, candidate, reference) -> None:
    """Judge, and where that fails ask that the failure starts where the entry says."""
    entry = deepspeed_open.find(name)
    try:
        assert_trainsafe(candidate, reference)
    except TrainsafeFailure as failure:
        step = "before the first step" if entry.step < 0 else f"step {entry.step}"
        start = f"starts at {entry.tensor} · {entry.kind} · {step}"
        if start not in " ".join(str(failure).split()):
            raise ValueError(f"it does not say: {start}") from failure
        raise


@wrong
@run_at("stage3_stale_gradient", "where")
def test_stage_3_forgets_the_gradient_of_the_step_before(candidate_trace, reference_trace):
    judge("stage3_stale_gradient", candidate_trace, reference_trace)


@run_at("stage3_stale_gradient", "right")
def test_stage_2_forgets_the_gradient_of_the_step_before(candidate_trace, reference_trace):
    judge("stage3_stale_gradient", candidate_trace, reference_trace)


@wrong
@run_at("stage3_stale_accumulation", "where")
def test_stage_3_accumulates_from_zero(candidate_trace, reference_trace):
    judge("stage3_stale_accumulation", candidate_trace, reference_trace)


@wrong
@run_at("offload_stale_gradient", "where")
def test_an_offloaded_optimizer_forgets_the_gradient_of_the_step_before(
    candidate_trace, reference_trace
):
    judge("offload_stale_gradient", candidate_trace, reference_trace)


@wrong
@run_at("offload_unused_last", "where")
def test_an_offloaded_optimizer_gets_what_was_accumulated(candidate_trace, reference_trace):
    judge("offload_unused_last", candidate_trace, reference_trace)


@run_at("offload_unused_last", "right")
def test_an_offloaded_optimizer_of_stage_1_gets_what_was_accumulated(
    candidate_trace, reference_trace
):
    judge("offload_unused_last", candidate_trace, reference_trace)


@wrong
@run_at("stage1_overlap_unused_last", "where")
def test_overlapped_reduction_averages_what_was_accumulated(candidate_trace, reference_trace):
    judge("stage1_overlap_unused_last", candidate_trace, reference_trace)


@wrong
@run_at("rank_dependent_branches", "where")
def test_ranks_may_use_different_parameters(candidate_trace, reference_trace):
    judge("rank_dependent_branches", candidate_trace, reference_trace)


@run_at("rank_dependent_branches", "right")
def test_ranks_may_use_different_parameters_without_zero(candidate_trace, reference_trace):
    judge("rank_dependent_branches", candidate_trace, reference_trace)


@wrong
@run_at("stage3_predivide", "where")
def test_predividing_is_undone(candidate_trace, reference_trace):
    judge("stage3_predivide", candidate_trace, reference_trace)


@wrong
@run_at("stage0_initial_step", "where")
def test_training_starts_from_the_given_weights(candidate_trace, reference_trace):
    judge("stage0_initial_step", candidate_trace, reference_trace)


@wrong
@run_at("stage0_tensor_parallel_norm", "where")
def test_the_norm_is_that_of_all_tensor_parallel_ranks(candidate_trace, reference_trace):
    judge("stage0_tensor_parallel_norm", candidate_trace, reference_trace)


still_wrong = pytest.mark.xfail(strict=True, raises=Different, reason="open in DeepSpeed 0.19.8")

#: Those that no program shows.
ALONE = [difference.name for difference in deepspeed_open.OPEN if not difference.program]


@still_wrong
@pytest.mark.parametrize("name", ALONE)
def test_what_only_a_reproduction_shows_is_mended(name, torchrun_group, tmp_path):
    script = REPRODUCTIONS / f"{name}.py"
    try:
        torchrun_group.run(run_script, str(script), str(tmp_path), world_size=ranks_of(script))
    except GroupFailure as failure:
        failed = [rank for rank in failure.result.ranks if rank.error_type]
        kinds = {rank.error_type for rank in failed}
        if kinds == {Different.__name__}:
            raise Different(name) from failure
        if kinds == {Unsupported.__name__}:
            pytest.skip(failed[0].error)
        raise


@still_wrong
def test_a_reproduction_needs_nothing_but_torchrun(tmp_path):
    script = REPRODUCTIONS / "stage0_expert_norm.py"
    torchrun = [sys.executable, "-m", "torch.distributed.run"]
    rendezvous = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    done = subprocess.run(
        [*torchrun, "--nproc-per-node", str(ranks_of(script)), *rendezvous, str(script)],
        cwd=tmp_path,
        env={**os.environ, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    if set(re.findall(r"exitcode *: (-?\d+)", done.stderr)) == {str(DIFFERENT)}:
        raise Different(done.stdout[-500:])
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize(
    ("end", "raised"),
    [
        ("raise SystemExit(3)", Different),
        ("raise SystemExit(77)", Unsupported),
        ("raise SystemExit(1)", SystemExit),
        ("assert not 'an assertion of DeepSpeed itself'", AssertionError),
    ],
)
def test_a_crash_is_told_from_the_difference(end, raised, tmp_path, monkeypatch):
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")  # run_script changes both
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "script.py"
    script.write_text(f"print('a reason')\n{end}\n")

    with pytest.raises(raised) as caught:
        run_script(str(script), str(tmp_path))

    assert raised not in (Different, Unsupported) or str(caught.value) == "a reason"


def test_every_reproduction_ends_with_its_exit_code():
    for script in REPRODUCTIONS.glob("*.py"):
        statements = ast.parse(script.read_text()).body
        assert isinstance(statements[-1], ast.Raise), script.name
        assert f"else {DIFFERENT})" in ast.unparse(statements[-1]), script.name
        assert not any(isinstance(each, ast.Assert) for each in statements), script.name


def ranks_of(script: Path) -> int:
    """The ranks that the command in a reproduction's head starts."""
    (ranks,) = re.findall(r"--nproc-per-node (\d+) ", script.read_text())
    return int(ranks)


def test_every_reproduction_has_an_entry():
    assert {each.name for each in deepspeed_open.OPEN} == {
        each.stem for each in REPRODUCTIONS.glob("*.py")
    }
