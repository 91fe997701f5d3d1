"""A user's mistakes, which `make types` checks: mypy reports each where this file expects it.

An expected error that is not reported is an unused `type: ignore`, which is an error itself.
"""

from __future__ import annotations

from pytest_trainsafe import (
    Context,
    Loosen,
    Traces,
    assert_equivalent,
    assert_trainsafe,
    divides,
    logical_tensor,
    requires,
)


def test_it(candidate_trace: Traces, reference_trace: Traces) -> None:
    assert_equivalent(candidate_trace, reference_trace)  # type: ignore[arg-type]
    assert_trainsafe(candidate_trace.at("float32"), reference_trace)  # type: ignore[arg-type]
    assert_trainsafe(candidate_trace)  # type: ignore[call-arg]
    assert_trainsafe(candidate_trace, reference_trace, loosen=["*"])  # type: ignore[list-item]
    logical_tensor(candidate_trace, "weight")  # type: ignore[arg-type]
    candidate_trace.att("float32")  # type: ignore[attr-defined]


def train(ctx: Context) -> None:
    ctx.watch()  # type: ignore[call-arg]
    ctx.sept()  # type: ignore[attr-defined]


requires("heads")  # type: ignore[arg-type]
divides(4, "tp")  # type: ignore[arg-type]
Loosen("*", factor="3", reason="an example")  # type: ignore[arg-type]
