"""Fuzz tests whose examples train in real ranks: a bug of two axes, a clean model, and noise."""

from __future__ import annotations

import runpy
from functools import partial
from pathlib import Path

import pytest

from pytest_trainsafe import FlakyProgram, FuzzFailure, Point, assert_trainsafe
from pytest_trainsafe.config.settings import SETTINGS
from pytest_trainsafe.fuzz.examples import Examples
from pytest_trainsafe.fuzz.source import point_source
from pytest_trainsafe.reference_models import gpt
from pytest_trainsafe.sweep.search.space import no_rule
from tests.support.fuzz import noisy_program

pytestmark = pytest.mark.processes

SMALL = {"hidden": 8, "heads": 2, "seq_len": 4, "batch_size": 1, "layers": 1, "steps": 1}
TRACES = frozenset({"candidate_trace", "reference_trace"})


def compare(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.fixture
def examples(request):
    """Makes the Examples of a program, in this test's session, with this test as their item."""

    def make(program, **axes):
        source = point_source(program, 4, axes)
        settings = request.config.stash[SETTINGS]._replace(dtypes=("float64",))
        source.begin(settings, no_rule)
        source.examples = Examples(request.node, source, TRACES)
        return source.examples

    return make


def test_a_bug_that_needs_tp_and_cp_is_reduced_to_these_axes(examples):
    """TTrace bug 14: the layer norms' gradients are summed over tp where only cp cuts them."""
    bug = {"bug": "cp-layernorm-grads"}
    made = examples(gpt.train, tp=[1, 2], cp=[1, 2], args=SMALL, candidate_args=bug)

    with pytest.raises(FuzzFailure) as failure:
        made.run(Point.of(tp=2, cp=2), partial(compare))

    found = failure.value.interaction
    assert found.point == Point.of(tp=2, cp=2)
    assert [effect.axis for effect in found.needs] == ["tp", "cp"]
    assert "interaction   needs tp >= 2 and cp >= 2\n" in str(failure.value)
    lead = failure.value.findings[0]
    assert lead.where is not None
    assert lead.where.kind == "main_grad"
    assert "layernorm" in lead.where.path


#: The example of the documentation is the clean program: hypothesis' test, collected here.
EXAMPLE = Path(__file__).parents[2] / "docs/examples/fuzz/test_gpt_fuzz.py"
test_gpt_trains_like_one_device = runpy.run_path(str(EXAMPLE))["test_gpt_trains_like_one_device"]


def test_a_program_with_unseeded_data_is_reported_as_flaky(examples, monkeypatch):
    """The search for the cause is replaced: it runs under torchrun, and has its own tests."""
    monkeypatch.setattr(
        "pytest_trainsafe.fuzz.failures.explain.cause_text", lambda candidate: "unseeded"
    )
    made = examples(noisy_program.train, dp=[1, 2])
    made.run(Point.of(dp=2), partial(compare))  # inconclusive: rounding cannot be measured

    with pytest.raises(FlakyProgram) as failure:
        made.conclude()

    text = " ".join(str(failure.value).split())
    assert "noisy_program.train is flaky at dp=2, so its failure is not a finding" in text
    assert "two executions of the same Run differ by" in text
    assert "cause unseeded" in text


def test_an_error_that_does_not_repeat_with_new_runs_is_reported_as_flaky(examples, monkeypatch):
    """An error before the comparison, such as a full disk, is no finding either."""
    monkeypatch.setattr("pytest_trainsafe.fuzz.failures.explain.cause_text", lambda candidate: "")
    made = examples(gpt.train, tp=[1, 2], args=SMALL)

    def fail_once(candidate_trace, reference_trace):
        assert candidate_trace.repeat == reference_trace.repeat
        if not reference_trace.repeat:
            raise OSError("no space left on device")

    with pytest.raises(FlakyProgram, match="with the same values, the test passes"):
        made.run(Point.of(tp=2), fail_once)
