"""Runs start in the order in which they are judged, and those that a hang makes useless end."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from pytest_trainsafe.launch import GroupFailure, GroupResult, RankResult
from pytest_trainsafe.runs.execution.scheduled import ScheduledRun
from pytest_trainsafe.runs.execution.scheduler import Scheduler
from pytest_trainsafe.runs.requested import RequestedRuns
from pytest_trainsafe.trace.run_spec import RunSpec


class Fake:
    """An executor whose Runs in the dtypes of `ends` fail; others last until they are stopped."""

    def __init__(self) -> None:
        self.ends: dict[str, BaseException] = {}
        launchers = SimpleNamespace(load=lambda **_: None)
        self.groups = SimpleNamespace(launchers=launchers, stop=threading.Event())

    def is_cached(self, spec: RunSpec) -> bool:
        return False

    def execute(self, order: ScheduledRun) -> None:
        if order.spec.dtype in self.ends:
            raise self.ends[order.spec.dtype]
        order.stop.wait()


@pytest.fixture
def scheduler() -> Iterator[Scheduler]:
    executor: Any = Fake()
    made = Scheduler(executor)
    yield made
    made.close()


def spec(dtype: str, *, trusted: bool = False, replay: RunSpec | None = None) -> RunSpec:
    own = RunSpec(program="m:train", script="m.py", axes=(), dtype=dtype, trusted=trusted)
    return msgspec.structs.replace(own, replay=replay)


def ended(status: Any) -> GroupFailure:
    rank = RankResult(rank=0, status=status, folder=Path())
    return GroupFailure(
        GroupResult(task="t", folder=Path(), ranks=(rank,), seconds=1.0, timeout=9.0)
    )


@pytest.mark.parametrize(("status", "stopped"), [("hung", True), ("raised", False)])
def test_a_run_that_hangs_ends_those_in_later_dtypes(
    scheduler: Scheduler, status: str, stopped: bool
) -> None:
    fake: Any = scheduler.executor
    fake.ends["float64"] = ended(status)
    runs = RequestedRuns(scheduler, lambda: None)
    later = [spec("float32"), spec("bfloat16")]
    for each in (*later, spec("float64")):
        runs.start(each)
    orders = [scheduler.scheduled[each] for each in later]
    with pytest.raises(GroupFailure):
        runs.get(spec("float64"))
    runs.give_up_if_hung(spec("float64"), later)
    assert [order.stop.is_set() for order in orders] == [stopped] * 2
    assert [each in scheduler.scheduled for each in later] == [not stopped] * 2


def test_a_candidate_joins_the_queue_behind_the_references_requested_before_it(
    scheduler: Scheduler,
) -> None:
    for each in (spec("float64"), spec("float64", trusted=True), spec("float32")):
        scheduler.run(each)
    first, reference, second = scheduler.scheduled.values()
    assert first.behind == reference.behind == ()
    assert set(second.behind) == {first.joined, reference.joined}


def test_a_run_that_follows_a_discarded_one_is_discarded_and_does_not_request_it_again(
    scheduler: Scheduler,
) -> None:
    deciding, other = spec("float64"), spec("float32")
    following = spec("bfloat16", replay=deciding)
    for each in (deciding, following, other):
        scheduler.run(each)
    first, second, _ = scheduler.scheduled.values()
    assert second.earlier == {deciding: first.run}
    with scheduler.lock:
        scheduler.give_up(deciding)
    assert [first.stop.is_set(), second.stop.is_set()] == [True, True]
    assert [*scheduler.scheduled] == [other]


def test_a_run_that_has_followed_a_discarded_one_stays(scheduler: Scheduler) -> None:
    fake: Any = scheduler.executor
    fake.ends["bfloat16"] = ended("raised")
    deciding = spec("float64")
    following = spec("bfloat16", replay=deciding)
    for each in (deciding, following):
        scheduler.run(each)
    with pytest.raises(GroupFailure):
        scheduler.scheduled[following].run.result()
    with scheduler.lock:
        scheduler.give_up(deciding)
    assert [*scheduler.scheduled] == [following]
