"""A rank of a Run writes what it observes into its trace."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from pytest_trainsafe.core.point import Point
from pytest_trainsafe.judges.learn.events.file import UnseenCalls, observed
from pytest_trainsafe.record import program
from pytest_trainsafe.record.assignment import Assignment
from pytest_trainsafe.record.clock import ProgramError
from pytest_trainsafe.record.context import Context
from pytest_trainsafe.trace.reader import Trace, TraceError
from pytest_trainsafe.trace.run_spec import Observe
from tests.support.learn.observing import Kept, Net

Record = Callable[..., Any]


def _train(ctx: Context) -> None:
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    ctx.initialize(net)
    ctx.watch(net, optimizer)
    for step in range(3):
        ctx.meta(epoch=0, length=step)
        with ctx.step():
            for index in ctx.microbatches(2):
                with ctx.microbatch(index):
                    loss = net(torch.ones(2, 3)).mean()
                    ctx.loss(loss)
                    loss.backward()
            optimizer.step()
            optimizer.zero_grad()


def test_the_table_of_a_rank_has_its_steps_micro_batches_and_meta_variables(record: Record) -> None:
    recorded = record(_train, observe=Observe())
    kept = Kept.of(observed(recorded.trace, 0))
    assert kept.steps == [0, 1, 2]
    forwards = kept.called("torch.nn.Module.forward")
    assert [(c.meta["step"], c.meta["microbatch"]) for c in forwards] == [
        (step, index) for step in range(3) for index in range(2)
    ]
    assert {c.meta["user.length"] for c in kept.called("torch.optim.SGD.step")} == {0, 1, 2}
    assert kept.of_object("model.one.weight", "data")
    assert forwards[0].meta["world_size"] == 1


def test_observing_does_not_change_what_is_recorded(record: Record) -> None:
    assert record(_train, observe=Observe()).hashes() == record(_train).hashes()


def test_the_run_spec_selects_apis_and_steps_and_missing_apis_are_recorded(record: Record) -> None:
    selection = Observe(("torch.optim.SGD.step", "torch.optim.SGD.fly"), (), every=2)
    recorded = record(_train, observe=selection)
    kept = Kept.of(observed(recorded.trace, 0))
    assert kept.apis() == ["torch.optim.SGD.step"] * 2
    assert kept.steps == [0, 2]
    [unseen] = recorded.rank.events_of(UnseenCalls)
    assert "torch.optim.SGD.fly" in unseen.what


def test_only_the_selected_tensors_of_calls_have_digests(record: Record) -> None:
    functions = ("torch.nn.functional.linear", "torch.nn.functional.relu")
    contents = ("torch.nn.functional.linear result", "torch.nn.functional.re* *")
    selection = Observe(functions, (), contents=contents)
    kept = Kept.of(observed(record(_train, observe=selection).trace, 0))

    read: dict[str, set[tuple[str, bool]]] = {}
    for call in kept.calls:
        for place, value in call.values.items():
            if value.tensor is not None:
                assert value.tensor.shape
                read.setdefault(call.api, set()).add((place, value.tensor.digest != 0))

    assert read == {
        "torch.nn.functional.linear": {
            *(("arg.0", False), ("arg.1", False), ("arg.2", False)),
            ("result", True),
        },
        "torch.nn.functional.relu": {("arg.input", True), ("result", True)},
    }


def test_meta_variables_contain_the_rank_and_its_tp_coordinate(
    assign: Callable[..., Assignment], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    assignment = assign(observe=Observe(), point=Point.of({"tp": 2}))
    program.record(assignment, lambda ctx: _train(ctx))
    trace = Trace.open(assignment.trace, allow_incomplete=True)
    meta = observed(trace, 1).metas[0]
    assert (meta["rank"], meta["world_size"], meta["tp_rank"]) == (1, 2, 1)


def test_a_crashed_run_keeps_its_observations(assign: Callable[..., Assignment]) -> None:
    def crashes(ctx: Context) -> None:
        _train(ctx)
        raise ZeroDivisionError

    assignment = assign(observe=Observe())
    with pytest.raises(ZeroDivisionError):
        program.record(assignment, crashes)
    trace = Trace.open(assignment.trace, allow_incomplete=True)
    assert Kept.of(observed(trace, 0)).steps == [0, 1, 2]


def test_reading_the_observations_of_a_run_without_observation_is_an_error(record: Record) -> None:
    recorded = record(_train)
    with pytest.raises(TraceError, match="did not observe any"):
        observed(recorded.trace, 0)
    assert not list(Path(recorded.trace.path).rglob("observed.bin"))


def test_a_changed_or_missing_table_is_refused(record: Record) -> None:
    recorded = record(_train, observe=Observe())
    file = recorded.trace.path / "rank0" / "observed.bin"
    data = file.read_bytes()
    file.write_bytes(data[:-1])
    with pytest.raises(TraceError, match="differs from what the rank recorded"):
        observed(recorded.trace, 0)
    file.unlink()
    with pytest.raises(TraceError, match="cannot be read"):
        observed(recorded.trace, 0)


def test_ctx_meta_refuses_the_step(record: Record) -> None:
    with pytest.raises(ProgramError, match=r"ctx\.step"):
        record(lambda ctx: ctx.meta(step=1))
