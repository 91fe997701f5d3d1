"""Mistakes of users end as ordinary failures of the tests that made them, each with its message.

One inner pytest run makes all of them, so that it is also seen that none disturbs the others.
"""

from __future__ import annotations

import re
from xml.etree import ElementTree

import inner_pytest
import pytest

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
    "hang": 'candidate_args={"mistake": "hang"}, timeout=5',
    "operation": 'candidate_args={"mistake": "operation"}',
}


@pytest.fixture(scope="module")
def messages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """For each inner test that failed, its message."""
    folder = tmp_path_factory.mktemp("mistakes")
    tests = [TEST.format(name=name, settings=value) for name, value in SETTINGS.items()]
    head = [
        "import pytest",
        "from mistaken_program import train",
        "from pytest_trainsafe import assert_trainsafe",
    ]
    (folder / "broken.yaml").write_text("loss: {partial: [[dp]]}")
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


def told(messages: dict[str, str], name: str) -> str:
    """The message of a test on one line."""
    return inner_pytest.flat(messages[name])


def test_a_clean_program_passes_among_them(messages: dict[str, str]) -> None:
    assert "clean" not in messages


def test_a_program_that_never_steps_is_told_to_call_ctx_step(messages: dict[str, str]) -> None:
    text = told(messages, "no_step")
    assert "never called ctx.step" in text
    assert "with ctx.step():" in text


def test_an_annotation_that_matches_nothing_is_named(messages: dict[str, str]) -> None:
    text = told(messages, "annotation")
    assert "no_such_layer" in text
    assert "matches nothing" in text


def test_an_annotation_file_is_named_with_what_is_wrong(messages: dict[str, str]) -> None:
    text = told(messages, "annotation_file")
    assert "broken.yaml: `loss: partial` is [['dp']]; it must be a list of tp, cp, dp" in text
    assert "mistaken_program.py" in text
    assert "annotation_entries.py" not in text


def test_dp_ranks_that_saw_the_same_data_are_inconclusive(messages: dict[str, str]) -> None:
    text = told(messages, "same_data")
    assert "inconclusive" in text
    assert "saw the same data" in text
    assert "accept=['dp-inputs']" in text


def test_an_inconclusive_check_can_be_accepted_by_name(messages: dict[str, str]) -> None:
    assert "same_data_accepted" not in messages


def test_gradients_that_were_not_reduced_are_partial_sums(messages: dict[str, str]) -> None:
    text = told(messages, "not_reduced")
    assert "starts at 0.weight · main_grad · step 0 · float64" in text
    assert "the ranks of dp hold partial sums: rank0 + rank1 equals the reference" in text
    assert "an all-reduce over dp is missing for this gradient" in text


def test_different_numbers_of_steps_are_named(messages: dict[str, str]) -> None:
    assert "the candidate recorded 2 steps on rank 0, but the reference recorded 1" in told(
        messages, "other_steps"
    )


def test_a_reference_that_is_not_finite_is_inconclusive(messages: dict[str, str]) -> None:
    text = told(messages, "nan")
    assert "inconclusive" in text
    assert "values of the reference are not finite" in text
    assert "2.output" in text


def test_an_exception_in_a_rank_is_the_tests_failure(messages: dict[str, str]) -> None:
    text = told(messages, "raise")
    assert "ValueError: rank 1 does not like step 0" in text
    assert "mistaken_program.py" in text


def test_a_killed_rank_is_named_with_its_signal(messages: dict[str, str]) -> None:
    text = told(messages, "kill")
    assert "rank 1" in text
    assert "SIGKILL" in text


def test_a_rank_that_never_returns_is_found_by_its_stack(messages: dict[str, str]) -> None:
    text = told(messages, "hang")
    assert "5 s" in text
    assert "_go_wrong" in text


def test_ranks_that_disagree_on_the_operation_are_named(messages: dict[str, str]) -> None:
    text = told(messages, "operation")
    assert "SUM" in text
    assert "MAX" in text
