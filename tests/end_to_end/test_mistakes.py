"""Each mistake of a user is a failure of its own test, with a message that explains it.

One inner pytest run makes all of them, which also shows that none disturbs the other tests.
"""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from pytest_trainsafe.launch import Launcher
from tests.support.end_to_end import inner_pytest
from tests.support.end_to_end.sharing import sharing_fork_server

TEST = """
@pytest.mark.trainsafe(train, dp=2, {settings})
def test_{name}(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)
"""

SETTINGS = {
    "clean": "",
    "no_step": 'candidate_args={"mistake": "no step"}',
    "annotation": 'candidate_args={"mistake": "annotation"}',
    "annotation_file": 'candidate_args={"mistake": "annotation file"}',
    "same_data": 'args={"mistake": "same data"}',
    "same_data_accepted": 'args={"mistake": "same data"}, accept=["dp-inputs"]',
    "not_reduced": 'candidate_args={"mistake": "not reduced"}',
    "other_steps": 'candidate_args={"steps": 2}',
    "nan": 'args={"mistake": "nan"}',
    "raise": 'candidate_args={"mistake": "raise"}',
    "kill": 'candidate_args={"mistake": "kill"}',
    "hang": 'candidate_args={"mistake": "hang"}, timeout=2',
    "operation": 'candidate_args={"mistake": "operation"}',
}


@pytest.fixture(scope="module")
def messages(tmp_path_factory: pytest.TempPathFactory, run_launcher: Launcher) -> dict[str, str]:
    """For each inner test that failed, its message."""
    folder = tmp_path_factory.mktemp("mistakes")
    tests = [TEST.format(name=name, settings=value) for name, value in SETTINGS.items()]
    head = [
        "import pytest",
        "from tests.support.end_to_end.mistaken_program import train",
        "from pytest_trainsafe import assert_trainsafe",
    ]
    (folder / "broken.yaml").write_text("loss: {partial: [[dp]]}")
    with sharing_fork_server(run_launcher):
        done = inner_pytest.run(folder, "\n".join([*head, *tests]), "--junitxml=report.xml")
    assert done.returncode == 1, done.stdout + done.stderr
    cases = ElementTree.parse(folder / "report.xml").getroot().iter("testcase")
    found = {}
    for case in cases:
        name = re.sub(r"^test_|\[.*", "", case.attrib["name"])
        assert case.find("error") is None, f"{name} is an error, not a failure: {done.stdout}"
        failure = case.find("failure")
        if failure is not None:
            found[name] = failure.attrib["message"] + (failure.text or "")
    return found


def message_of(messages: dict[str, str], name: str) -> str:
    """The message of a test on one line."""
    return inner_pytest.flat(messages[name])


def test_a_correct_program_passes_in_the_same_run(messages: dict[str, str]) -> None:
    assert "clean" not in messages


def test_a_program_without_ctx_step_is_advised_to_call_it(messages: dict[str, str]) -> None:
    text = message_of(messages, "no_step")
    assert "never called ctx.step" in text
    assert "with ctx.step():" in text


def test_an_annotation_that_matches_nothing_is_reported(messages: dict[str, str]) -> None:
    text = message_of(messages, "annotation")
    assert "no_such_layer" in text
    assert "matches nothing" in text


def test_an_invalid_annotation_file_is_reported_with_its_error(messages: dict[str, str]) -> None:
    text = message_of(messages, "annotation_file")
    assert "broken.yaml:1: `loss: partial` is [['dp']]; it must be a list of tp, cp, dp" in text
    assert "mistaken_program.py" in text
    assert "annotation_entries.py" not in text


def test_the_same_data_on_all_dp_ranks_is_inconclusive(messages: dict[str, str]) -> None:
    text = message_of(messages, "same_data")
    assert "inconclusive" in text
    assert "saw the same data" in text
    assert "accept=['dp-inputs']" in text


def test_an_inconclusive_check_can_be_accepted_by_name(messages: dict[str, str]) -> None:
    assert "same_data_accepted" not in messages


def test_unreduced_gradients_are_reported_as_partial_sums(messages: dict[str, str]) -> None:
    text = message_of(messages, "not_reduced")
    assert "starts at 0.weight · main_grad · step 0 · float64" in text
    assert "the ranks of dp hold partial sums: rank0 + rank1 equals the reference" in text
    assert "an all-reduce over dp is missing for this gradient" in text


def test_different_numbers_of_steps_are_reported(messages: dict[str, str]) -> None:
    assert "the candidate recorded 2 steps on rank 0, but the reference recorded 1" in message_of(
        messages, "other_steps"
    )


def test_a_reference_with_nan_values_is_inconclusive(messages: dict[str, str]) -> None:
    text = message_of(messages, "nan")
    assert "inconclusive" in text
    assert "values of the reference are not finite" in text
    assert "2.output" in text


def test_an_exception_in_a_rank_is_reported_as_a_test_failure(messages: dict[str, str]) -> None:
    text = message_of(messages, "raise")
    assert "ValueError: rank 1 does not like step 0" in text
    assert "mistaken_program.py" in text


def test_a_killed_rank_is_reported_with_its_signal(messages: dict[str, str]) -> None:
    text = message_of(messages, "kill")
    assert "rank 1" in text
    assert "SIGKILL" in text


def test_a_rank_that_hangs_is_reported_with_its_stack(messages: dict[str, str]) -> None:
    text = message_of(messages, "hang")
    assert "2 s" in text
    assert "_go_wrong" in text


def test_different_reduce_operations_of_ranks_are_reported(messages: dict[str, str]) -> None:
    text = message_of(messages, "operation")
    assert "SUM" in text
    assert "MAX" in text
