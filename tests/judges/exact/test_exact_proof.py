"""`assert_proved_equivalent`: proved with a certificate, refuted, or not covered and why."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_trainsafe.judges.exact.certificate import read
from tests.support.exact.proved_program import PROGRAM

TEST = """
import pytest
from program import train
from pytest_trainsafe import assert_proved_equivalent


@pytest.mark.trainsafe(train, tp=2)
def test_clean(candidate_trace, reference_trace):
    assert_proved_equivalent(candidate_trace, reference_trace)


@pytest.mark.trainsafe(train, tp=2, bug="unreduced")
def test_unreduced(candidate_trace, reference_trace):
    assert_proved_equivalent(candidate_trace, reference_trace)


@pytest.mark.trainsafe(train, tp=2, bug="tiny")
def test_tiny(candidate_trace, reference_trace):
    assert_proved_equivalent(candidate_trace, reference_trace)


@pytest.mark.trainsafe(train, tp=2, unknown=True)
def test_unknown(candidate_trace, reference_trace):
    assert_proved_equivalent(candidate_trace, reference_trace)


@pytest.mark.trainsafe(train, tp=2, bug="tiny")
def test_accepted(candidate_trace, reference_trace):
    assert_proved_equivalent(candidate_trace, reference_trace, accept=["exact:unconfirmed"])
"""


LACKING = """
import pytest
from program import train
from pytest_trainsafe import assert_proved_equivalent


@pytest.mark.trainsafe(train, tp=2, args={"layouts": False})
def test_lacking(candidate_trace, reference_trace):
    assert_proved_equivalent(candidate_trace, reference_trace)
"""


KINDS = {"activation", "activation_grad", "loss", "main_grad", "optimizer_state", "param_grad"}


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makepyfile(program=PROGRAM, test_it=TEST)
    return pytester


def test_a_program_is_proved_refuted_or_not_covered(
    project: pytest.Pytester, without_hypothesis: None, shared_fork_server: None
) -> None:
    result = project.runpytest_inprocess("--junitxml=report.xml", "--basetemp=base")

    result.assert_outcomes(passed=2, failed=3)
    text = result.stdout.str()
    assert "the ranks of tp hold partial sums: rank0 + rank1 equals the reference (exactly)" in text
    assert "confirmed     float64 refutes it too" in text
    # The tensors between modules are replaced in float64, where the failure is localised.
    assert "the forward of down (class Down): given equal inputs, its output differs" in text
    assert "E         localised     in " in text
    assert "a guess" not in text
    assert "exact numbers differ first at" in text
    assert "float64 agrees up to rounding" in text
    assert "aten.i0 has no semantics for exact numbers" in text
    assert "5 points judged: 2 pass, 1 fail, 2 inconclusive" in text

    [path] = Path(project.path).glob("**/*test_clean*.certificate.json")
    assert f"certificate: {path}" in text
    assert str(path) in (project.path / "report.xml").read_text()
    certificate = read(path)
    assert certificate.error <= 1e-9
    assert certificate.seeds == (0,)
    assert 10 < certificate.multiplications < 10_000
    assert len(certificate.candidate.integers) == 2
    assert certificate.candidate.decisions[0] > 0
    assert "c10d.allreduce_" in certificate.candidate.operators
    assert "c10d.allreduce_" not in certificate.reference.operators
    assert certificate.semantics["aten.clamp"].startswith("pytest_trainsafe.arithmetic.semantics")
    names = {kind for name in certificate.tensors for kind in KINDS if kind in name}
    assert names == KINDS


def test_a_program_that_only_lacks_layouts_is_not_said_to_be_refuted(
    project: pytest.Pytester, without_hypothesis: None, shared_fork_server: None
) -> None:
    project.makepyfile(test_it=LACKING)
    result = project.runpytest_inprocess("--basetemp=base")
    result.assert_outcomes(failed=1)
    text = result.stdout.str()
    assert "at tp=2: layouts are missing for 1 module" in text
    assert "every tensor matches its reference" in " ".join(text.replace("\nE ", " ").split())
    assert "does not compute" not in text
    assert "refutes" not in text
