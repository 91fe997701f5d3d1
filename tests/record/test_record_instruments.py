"""A Run's instruments: their order, the moments at which they are called, those of a project."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import msgspec
import pytest
import torch
from torch import nn

from pytest_trainsafe.record.instrument import Instrument, Recording, WatchedModel
from pytest_trainsafe.record.instruments import in_order
from pytest_trainsafe.trace.events import register


@register
class Moment(msgspec.Struct, frozen=True, tag="moment_of_a_test"):
    what: str


class Moments(Instrument):
    """Records each moment at which it is called."""

    name = "moments"
    after: ClassVar = {"rng": "only to have another place"}

    def __init__(self, recorder: Recording) -> None:
        self._writer = recorder.writer

    def _note(self, what: str) -> None:
        self._writer.add(Moment(what))

    @contextmanager
    def around(self) -> Iterator[None]:
        self._note("starts")
        yield
        self._note("ends")

    def before_watch(self, model: Any, optimizer: Any) -> None:
        self._note("before watch")

    def watch(self, watched: WatchedModel) -> None:
        self._note(f"watch {', '.join(watched.parameters)}")

    def before_step(self) -> None:
        self._note("before step")

    @contextmanager
    def in_step(self, number: int) -> Iterator[None]:
        self._note(f"step {number}")
        yield
        self._note(f"end of step {number}")

    @contextmanager
    def in_microbatch(self, index: int) -> Iterator[None]:
        self._note(f"micro-batch {index}")
        yield
        self._note(f"end of micro-batch {index}")

    def after_step(self) -> None:
        self._note("after step")

    def meta(self, values: Mapping[str, object]) -> None:
        self._note(f"meta {dict(values)}")

    def finish(self) -> None:
        self._note("finish")


def train(ctx: Any) -> None:
    net = nn.Linear(2, 1, dtype=ctx.dtype)
    ctx.watch(net, torch.optim.SGD(net.parameters(), lr=0.1))
    ctx.meta(epoch=1)
    with ctx.step(), ctx.microbatch(0):
        net(torch.ones(1, 2, dtype=ctx.dtype)).sum().backward()


def test_an_instrument_that_a_run_names_is_called_at_each_moment_and_its_events_are_read(record):
    rank = record(train, instruments=(f"{__name__}:Moments",)).rank

    assert [event.what for event in rank.events_of(Moment)] == [
        *("starts", "before watch", "watch weight, bias", "meta {'epoch': 1}"),
        *("before step", "step 0", "micro-batch 0", "end of micro-batch 0", "end of step 0"),
        *("after step", "ends", "finish"),
    ]


def test_a_run_that_names_no_further_instrument_has_none(record):
    assert record(train).rank.events_of(Moment) == []


def _kind(name: str, *after: str) -> type[Instrument]:
    members = {"name": name, "after": dict.fromkeys(after, "a reason")}
    return type(name, (Instrument,), members)


def test_instruments_come_after_those_that_they_name_and_otherwise_keep_their_place():
    kinds = [_kind("a", "c", "missing"), _kind("b"), _kind("c", "d"), _kind("d"), _kind("e")]

    assert [kind.name for kind in in_order(kinds)] == ["b", "d", "c", "a", "e"]


def test_instruments_that_name_each_other_and_equal_names_are_refused():
    with pytest.raises(ValueError, match="the instruments a, b must each come after another"):
        in_order([_kind("a", "b"), _kind("b", "a"), _kind("c")])
    with pytest.raises(ValueError, match="two instruments have the name 'a'; rename one of them"):
        in_order([_kind("a"), _kind("a")])
