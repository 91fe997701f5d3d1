"""What is said of gradients that keep the previous step's follows from the calls of `zero_grad`."""

from __future__ import annotations

import dataclasses

import pytest

from pytest_trainsafe.core.point import Point
from pytest_trainsafe.judges.compare.localize.clearing import not_cleared, of_clearing
from pytest_trainsafe.judges.compare.localize.code.lines import NOWHERE
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.trace.facts import Zeroed
from pytest_trainsafe.trace.reader import Trace
from tests.support.compare.clipped_traces import rung
from tests.support.localize.blamed_traces import noting, with_facts
from tests.support.localize.said import said

AT = "/me/fit.py:9"

#: A parameter that every rank of the traces holds.
HELD = "fc1.bias"


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> RungTraces:
    return rung(tmp_path_factory.mktemp("clearing"), Point.of(tp=2))


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ([], "no call of zero_grad was seen"),
        ([Zeroed(0, "before", AT)], f"before the backwards of step 0 at {AT}, and not between"),
        (
            [Zeroed(1, "backward", AT)],
            f"the optimizer's step in step 1 at {AT}, and not between step 0 and the backwards of",
        ),
        (
            [Zeroed(0, "stepped", AT, kept=("a", "b"), left=2)],
            f"at {AT}, but does not concern them",
        ),
        ([Zeroed(1, "before", AT, kept=("a",), left=1)], "does not concern a"),
        ([Zeroed(0, "stepped", AT)], "so they are kept elsewhere than in `grad`"),
        ([Zeroed(0, "stepped", "/env/lib.py:2", AT)], f"between the steps at {AT}, so"),
    ],
)
def test_the_sentence_says_what_the_calls_show(
    traces: RungTraces, calls: list[Zeroed], expected: str
) -> None:
    candidate = noting(traces, *calls).candidate
    assert expected in not_cleared(candidate, 1, ["a", "b"], traces.reference)
    assert of_clearing(candidate, traces.reference) == NOWHERE


def test_the_line_that_clears_gradients_in_the_reference_alone_is_named(
    traces: RungTraces,
) -> None:
    there = noting(traces, Zeroed(0, "stepped", AT)).candidate
    sentence = not_cleared(traces.candidate, 1, ["a"], there)
    assert sentence == f"no call of zero_grad was seen; the reference calls it at {AT}"
    found = said(of_clearing(traces.candidate, there))
    assert found == (AT, "clears gradients in the reference alone")
    assert of_clearing(there, there) == NOWHERE


def test_a_rank_that_holds_the_parameters_and_never_clears_them_is_named(
    traces: RungTraces,
) -> None:
    trace = _on_rank_0(traces, Zeroed(0, "stepped", AT))
    sentence = not_cleared(trace, 1, [HELD], traces.reference)
    assert sentence == (
        "rank 1 does not clear them: zero_grad is called between the steps on rank 0 alone, "
        f"at {AT}"
    )
    found = said(of_clearing(trace, traces.reference, 1, [HELD]))
    assert found == (AT, "clears gradients on rank 0 alone")
    assert of_clearing(trace, traces.reference, 2, [HELD]) == NOWHERE
    assert of_clearing(trace, traces.reference, 1) == NOWHERE


def test_a_rank_without_the_parameters_need_not_clear_them(traces: RungTraces) -> None:
    """Nor does its call count as one that concerns them, as it holds none to leave out."""
    trace = _on_rank_0(traces, Zeroed(0, "stepped", AT, kept=(HELD,), left=1))
    first, second = trace.ranks
    less = {id: event for id, event in second.tensors.items() if id.path != HELD}
    second = dataclasses.replace(second, tensors=less)
    alone = Trace(trace.path, trace.manifest, [first, second])
    assert "does not concern them" in not_cleared(alone, 1, [HELD], traces.reference)
    second = dataclasses.replace(second, facts=with_facts(second, Zeroed(0, "stepped", AT)))
    both = Trace(trace.path, trace.manifest, [first, second])
    assert "does not concern them" in not_cleared(both, 1, [HELD], traces.reference)


def _on_rank_0(traces: RungTraces, call: Zeroed) -> Trace:
    """The candidate's trace as if its rank 0 alone had made a call."""
    first, *others = traces.candidate.ranks
    first = dataclasses.replace(first, facts=with_facts(first, call))
    return Trace(traces.candidate.path, traces.candidate.manifest, [first, *others])
