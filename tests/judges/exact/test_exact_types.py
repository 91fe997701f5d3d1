"""The types of tensors are observed: replicated, partial sums, sharded, or none of these."""

from __future__ import annotations

import pytest

from tests.support.exact.proved_program import PROGRAM

TEST = """
import pytest
from program import train
from pytest_trainsafe.judges.exact.types import observed_types


def types(candidate_trace, reference_trace):
    found = observed_types(candidate_trace.at("exact"), reference_trace.at("exact"))
    return {f"{each.id.kind} {each.id.path}": str(each) for each in found}


@pytest.mark.trainsafe(train, tp=2)
def test_clean(candidate_trace, reference_trace):
    found = types(candidate_trace, reference_trace)
    for kind in ("param", "param_grad", "main_grad"):
        assert found[f"{kind} up.weight"] == "tp sharded (dimension 0)"
        assert found[f"{kind} down.weight"] == "tp sharded (dimension 1)"
    assert found["activation up.output"] == "tp sharded (dimension 1)"
    assert found["activation down.output"] == "tp replicated"
    assert found["optimizer_state up.weight.exp_avg"] == "tp sharded (dimension 0)"
    assert not any("different" in text for text in found.values())


@pytest.mark.trainsafe(train, tp=2, bug="unreduced")
def test_unreduced(candidate_trace, reference_trace):
    found = types(candidate_trace, reference_trace)
    assert found["activation down.output"] == "tp partial sum"
    assert found["activation up.output"] == "tp sharded (dimension 1)"
    assert found["loss loss"] == "tp different"


@pytest.mark.trainsafe(train, tp=2, bug="twice")
def test_twice(candidate_trace, reference_trace):
    found = types(candidate_trace, reference_trace)
    assert found["param_grad up.weight"] == "tp sharded (dimension 0)"
    assert found["main_grad up.weight"] == "tp different: 2 times the reference"
"""


def test_types_are_found_without_declarations(
    pytester: pytest.Pytester, without_hypothesis: None, shared_fork_server: None
) -> None:
    # Only the types of parameters need no search: what modules return is not declared.
    pytester.makepyfile(
        program=PROGRAM.replace('"up": {"output": {"tp_dim": 1}}', ""), test_it=TEST
    )

    result = pytester.runpytest_inprocess("--trainsafe-launcher", "threads", "-x")

    result.assert_outcomes(passed=3)
