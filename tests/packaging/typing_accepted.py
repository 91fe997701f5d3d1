"""A user's code, which `make types` checks: mypy in strict mode accepts it as it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from pytest_trainsafe import (
    AnnotationError,
    ArgumentError,
    Case,
    Context,
    DeclarationError,
    Finding,
    Group,
    GroupFailure,
    Loosen,
    Mismatch,
    Pattern,
    Point,
    Script,
    TensorId,
    Trace,
    TraceError,
    Traces,
    TrainsafeError,
    TrainsafeFailure,
    TrainsafeWarning,
    assert_equivalent,
    assert_kept_relations,
    assert_same_by,
    assert_trainsafe,
    consistent_tensor,
    context,
    divides,
    logical_tensor,
    relations,
    requires,
)


@requires(divides("heads", "tp"))
def train(ctx: Context, heads: int = 4) -> None:
    size: int = ctx.point.size("tp")
    weight = consistent_tensor("weight", (heads, size), sizes=ctx.point.sizes)
    with ctx.step():
        for index in ctx.microbatches(4):
            with ctx.microbatch(index):
                ctx.loss(weight.sum())


def rule(point: Point, arguments: Mapping[str, object]) -> str | None:
    return "too wide" if point.size("tp") > 4 and "heads" in arguments else None


@requires(rule)
def script() -> None:
    ctx: Context = context()
    ctx.grad_norm(1.0)


@pytest.mark.trainsafe(train, tp=[1, 2])
def test_it(candidate_trace: Traces, reference_trace: Traces) -> None:
    assert_trainsafe(
        candidate_trace,
        reference_trace,
        loosen=[Loosen("*.weight", factor=2, reason="an example")],
        accept=["moved"],
    )


@pytest.mark.trainsafe(Script("train.py", args=["--lr", "1e-3"]), tp=[1, 2])
def test_traces(candidate_trace: Traces, reference_trace: Traces, trainsafe: Case) -> None:
    trace: Trace = candidate_trace.at("float32")
    ids: Sequence[TensorId] = list(trace.ids())
    tensor = logical_tensor(trace, ids[0]).tensor
    assert tensor is not None
    assert tensor.shape
    assert trainsafe.point.world_size > 1
    assert_equivalent(trace, reference_trace.at("float32"), accept={"moved"})


@relations.hold(relations.Split(loss="sum"), relations.Order([1, 0]))
def related(ctx: Context, batch_size: int = 2, microbatches: int = 2) -> None: ...


@pytest.mark.trainsafe(related, dp=[1, 2])
def test_relations(candidate_trace: Traces) -> None:
    assert_same_by("split", candidate_trace)
    assert_same_by(relations.LossScale(factor=4.0), candidate_trace, accept=["relation:effect"])
    assert_kept_relations(candidate_trace, "relations.txt", candidates=[relations.Order(), "split"])


def test_group(torchrun_group: Group) -> None:
    values: list[object] = torchrun_group.run(len, [1], world_size=2)
    assert values == [1, 1]


def findings_of(failure: TrainsafeFailure) -> tuple[Finding, ...]:
    return failure.findings


def explained(finding: Finding) -> tuple[Pattern | None, Mismatch | None]:
    return finding.pattern, finding.mismatch


def caught(error: TrainsafeError) -> str:
    if isinstance(error, (ArgumentError, DeclarationError, AnnotationError)):
        problem: ValueError = error
        return str(problem)
    if isinstance(error, GroupFailure):
        return str(error.result.task)
    return "trace" if isinstance(error, TraceError) else ""


CATEGORY: type[Warning] = TrainsafeWarning
