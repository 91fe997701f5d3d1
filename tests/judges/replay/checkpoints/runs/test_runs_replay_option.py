"""`--trainsafe-replay`: a failing test runs again from its last checkpoint before the failure."""

from __future__ import annotations

import pytest

from pytest_trainsafe import Trace
from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.judges.replay.checkpoints.events import RestartEvent
from pytest_trainsafe.record import program
from pytest_trainsafe.record.assignment import Assignment
from pytest_trainsafe.reference_models.corpus import points
from pytest_trainsafe.reference_models.replay import nan_loss
from pytest_trainsafe.runs.specs import spec_of
from pytest_trainsafe.trace.writer import manifest_of, write_manifest

TEST = """
import pytest

from pytest_trainsafe import assert_rng
from pytest_trainsafe.reference_models.replay import nan_loss


@pytest.mark.trainsafe(nan_loss.train, dtype=["float32"])
def test_nan(candidate_trace):
    assert_rng(candidate_trace)
"""


@pytest.fixture
def recorded(tmp_path):
    """What the test's candidate records, up to the step that fails."""
    [case] = points("replay.nan_loss", {"dtype": ["float32"]}, {}, Settings())
    spec = spec_of(case, "candidate", "float32")
    folder = tmp_path / "recorded" / "trace"
    write_manifest(folder, manifest_of(spec, "cpu"))
    with pytest.raises(FloatingPointError):
        program.record(Assignment(spec=spec, trace=str(folder)), nan_loss.train)
    return folder


def test_a_training_that_fails_with_nan_fails_again_from_its_last_checkpoint(
    recorded, pytester, write_ini, without_hypothesis, shared_fork_server
):
    pytester.makepyfile(test_replayed=TEST)
    write_ini()

    result = pytester.runpytest_inprocess(
        "--trainsafe-dtype=float32",
        "--trainsafe-keep-traces=kept",
        f"--trainsafe-replay={recorded.parent}",
    )

    result.assert_outcomes(failed=1)
    verified = (
        "*nan_loss:train at a single device in float32 was replayed from the checkpoint before "
        "step *: 1 draw of step * verified against the ledger of the trace; * tensors of the "
        "replayed steps have the recorded bits; the Run then failed, as shown"
    )
    result.stdout.fnmatch_lines(
        [
            "*raised FloatingPointError: the loss is nan in step *",
            "*on a single device, in float32, replayed from a checkpoint",
            verified,
        ]
    )
    folder = min((pytester.path / "kept" / "trainsafe").glob("*-run"))
    before, after = (Trace.open(path, True).ranks[0] for path in (recorded, folder / "trace"))
    restart = after.events_of(RestartEvent)[-1]
    assert restart.step >= 4
    done = [event.step for event in before.steps if event.step >= restart.step]
    assert [event.step for event in after.steps] == done


def test_a_replay_of_a_folder_that_is_no_trace_is_a_usage_error(
    pytester, write_ini, without_hypothesis
):
    write_ini()
    pytester.mkdir("empty")

    for given in ("empty", "empty@3", "none such", "@3", ""):
        result = pytester.runpytest_inprocess(f"--trainsafe-replay={given}")
        assert result.ret == 4
        result.stderr.fnmatch_lines(
            ["ERROR: --trainsafe-replay takes the folder of a trace, such as * manifest.json.*"]
        )


def test_a_step_that_is_not_a_number_is_named_as_the_fault(pytester, write_ini, without_hypothesis):
    write_ini()
    pytester.mkdir("run@home")
    (pytester.path / "run@home" / "manifest.json").write_text("{}")

    for step in ("-1", "x", "", "1.5"):
        result = pytester.runpytest_inprocess(f"--trainsafe-replay=run@home@{step}")
        assert result.ret == 4
        result.stderr.fnmatch_lines(
            [f"*the number of a step, counted from 0, such as run@home@3, not '{step}' as the st*"]
        )
    assert pytester.runpytest_inprocess("--trainsafe-replay=run@home").ret == 5
    assert pytester.runpytest_inprocess("--trainsafe-replay=run@home@0").ret == 5


def test_a_replay_that_fails_is_not_reported_as_never_requested(
    recorded, pytester, write_ini, without_hypothesis
):
    pytester.makepyfile(test_replayed=TEST)
    write_ini()

    result = pytester.runpytest_inprocess(
        "--trainsafe-dtype=float32", f"--trainsafe-replay={recorded}@99"
    )

    result.assert_outcomes(failed=1)
    result.stdout.no_fnmatch_line("*no test requested*")
    result.stdout.fnmatch_lines(["nothing was replayed: --trainsafe-replay was given step 99, *"])


def test_a_replayed_run_that_no_selected_test_requests_is_reported(
    pytester, write_ini, without_hypothesis
):
    write_ini()
    pytester.mkdir("other")
    (pytester.path / "other" / "manifest.json").write_text("{}")
    pytester.makepyfile("def test_nothing(): pass")

    result = pytester.runpytest_inprocess("--trainsafe-replay=other@3")

    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        ["*no test requested the run of */other; select the test that recorded it"]
    )
