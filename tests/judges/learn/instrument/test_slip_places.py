"""A finding on a broken rule names the line of the program where a slip was noticed."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from pytest_trainsafe.judges.first_line import first_line
from pytest_trainsafe.judges.learn.events.file import SlipPlace
from pytest_trainsafe.judges.learn.registry import relations
from pytest_trainsafe.judges.learn.use.deploy import load_packs
from pytest_trainsafe.judges.learn.use.judged import judge_trace
from pytest_trainsafe.record.context import Context
from pytest_trainsafe.trace.run_spec import Observe
from tests.support.learn.observing import Net

RELATIONS = relations()


def _clears_too_early(ctx: Context, *, early: bool = True) -> None:
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    ctx.initialize(net)
    ctx.watch(net, optimizer)
    for _ in range(3):
        with ctx.step(), ctx.microbatch(0):
            loss = net(torch.ones(2, 3)).mean()
            ctx.loss(loss)
            loss.backward()
            if early:
                optimizer.zero_grad()
            optimizer.step()  # the slip: it finds no gradients
            optimizer.zero_grad()


def _clears_in_time(ctx: Context) -> None:
    _clears_too_early(ctx, early=False)


def _line_of_the_slip() -> str:
    lines, first = inspect.getsourcelines(_clears_too_early)
    at = next(number for number, line in enumerate(lines) if "# the slip" in line)
    return f"{Path(__file__).name}:{first + at}"


def test_the_finding_and_its_first_line_name_the_line_of_the_slip(
    record: Callable[..., Any],
) -> None:
    packs = load_packs(["pytorch"], Path("/nowhere"), RELATIONS)
    trace = record(_clears_too_early, observe=Observe()).trace
    judgement = judge_trace(trace, packs, RELATIONS, ())

    lead = judgement.findings[0]
    assert (lead.check, Path(lead.source).name) == ("learn:slip", _line_of_the_slip())
    assert first_line(judgement).endswith(_line_of_the_slip())


def test_a_run_without_slips_records_no_places(record: Callable[..., Any]) -> None:
    assert not record(_clears_in_time, observe=Observe()).rank.events_of(SlipPlace)
