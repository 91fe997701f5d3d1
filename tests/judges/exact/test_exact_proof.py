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


AVERAGED = """
import pytest
import torch
import torch.distributed as dist
from pytest_trainsafe import assert_proved_equivalent


def train(ctx):
    group = ctx.group("dp")
    size = dist.get_world_size(group)
    model = torch.nn.Linear(4, 3).to(ctx.dtype)
    ctx.initialize(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ctx.watch(model, optimizer)
    with ctx.step():
        for index in ctx.microbatches(2):
            with ctx.microbatch(index):
                generator = torch.Generator().manual_seed(index)
                x = torch.randn(3, 4, generator=generator, dtype=torch.float64).to(ctx.dtype)
                loss = model(x).square().sum() / (2 // size)
                ctx.loss(loss / size)
                loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, group=group)
            parameter.grad /= size
        optimizer.step()


@pytest.mark.trainsafe(train, dp=2)
def test_averaged(candidate_trace, reference_trace):
    assert_proved_equivalent(candidate_trace, reference_trace)
"""


def test_a_program_that_only_lacks_a_mean_is_not_said_to_be_refuted(
    pytester: pytest.Pytester, without_hypothesis: None, shared_fork_server: None
) -> None:
    """Only the comparison in float64 proposes means over ranks."""
    pytester.makepyfile(test_it=AVERAGED)
    result = pytester.runpytest_inprocess("--basetemp=base")
    result.assert_outcomes(failed=1)
    text = result.stdout.str()
    assert "at dp=2: the annotation `gradients: {mean: [dp]}` is missing" in text
    assert "does not compute" not in text
    assert "refutes" not in text
