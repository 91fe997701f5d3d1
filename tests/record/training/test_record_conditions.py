"""Localisation Runs record modules that run with changed parameters or in evaluation mode."""

from __future__ import annotations

import linecache
from typing import Any

import msgspec
import pytest
import torch
from torch import nn

from pytest_trainsafe.trace.events import decoder, fault_of
from pytest_trainsafe.trace.facts import Altered, Site
from pytest_trainsafe.trace.run_spec import Rewrite

X = torch.linspace(-1, 1, 12).reshape(4, 3) ** 3

REWRITE = {"activation 0.output 0": Rewrite((4, 2), 0.0, 1.0)}


def train(early: bool = False, evaluated: bool = False, between: bool = False) -> Any:
    """Two steps of two micro-batches; the optimizer may step `early`, in both micro-batches."""

    def run(ctx: Any) -> None:
        model = nn.Sequential(nn.Linear(3, 2), nn.Sequential(nn.BatchNorm1d(2), nn.Dropout(0.5)))
        model.to(ctx.dtype)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        ctx.watch(model, optimizer)
        model.eval()
        model.train()
        if evaluated:
            model[1].eval()
        for _ in range(2):
            if between:
                model.get_parameter("0.weight").data.add_(1.0)
            with ctx.step():
                for index in ctx.microbatches(2):
                    with ctx.microbatch(index):
                        model(X.to(ctx.dtype)).square().sum().backward()
                        if early:
                            optimizer.step()
                optimizer.step()
                optimizer.zero_grad()

    return run


def lines(run: Any, what: str) -> list[str]:
    """The source of the recorded lines of one kind."""
    sites = run.rank.events_of(Site)
    at = [site.at.rpartition(":") for site in sites if site.what == what]
    return [linecache.getline(file, int(line)).strip() for file, _, line in at]


def evaluated(run: Any) -> list[Site]:
    """The modules that ran in evaluation mode."""
    return [site for site in run.rank.events_of(Site) if site.what == "mode"]


def test_parameter_changes_between_forwards_of_a_step_are_recorded_with_the_line(
    record: Any,
) -> None:
    run = record(train(early=True), rewrite=REWRITE)
    changed = [Altered(step, 1, module) for step in (0, 1) for module in ("0", "1.0")]
    assert run.rank.events_of(Altered) == changed
    assert lines(run, "alter") == ["optimizer.step()"]


def test_parameter_changes_between_steps_are_recorded(record: Any) -> None:
    run = record(train(between=True), rewrite=REWRITE)
    assert run.rank.events_of(Altered) == [Altered(s, n, "0") for s in (0, 1) for n in (0, 1)]


def test_an_optimizer_step_after_the_last_forward_is_not_recorded_as_a_change(record: Any) -> None:
    run = record(train(), rewrite=REWRITE)
    assert run.rank.events_of(Altered) == []
    assert evaluated(run) == []
    assert lines(run, "alter") == []


def test_a_module_in_evaluation_mode_is_recorded_with_the_line_that_calls_eval(record: Any) -> None:
    run = record(train(evaluated=True), rewrite=REWRITE)
    sites = evaluated(run)
    assert [site.name for site in sites] == [
        "1.0",
        "1.1",
    ]  # other modules compute the same in both modes
    file, _, line = sites[0].at.rpartition(":")
    assert linecache.getline(file, int(line)).strip() == "model[1].eval()"
    assert {site.at for site in sites} == {sites[0].at}


def test_a_parameter_gathered_for_the_forward_is_not_recorded_as_changed(record: Any) -> None:
    def run(ctx: Any) -> None:
        model = nn.Sequential(nn.Linear(3, 2)).to(ctx.dtype)
        weight = model.get_parameter("0.weight")
        whole = weight.detach().clone()
        weight.data = torch.empty(0)
        model[0].register_forward_pre_hook(lambda *_: setattr(weight, "data", whole))
        model[0].register_forward_hook(lambda *_: setattr(weight, "data", torch.empty(0)))
        ctx.watch(model)
        with ctx.step(), ctx.microbatch(0), torch.no_grad():
            model(X.to(ctx.dtype))

    assert record(run, rewrite=REWRITE).rank.events_of(Altered) == []


def test_other_runs_record_no_parameter_changes_and_no_evaluation_modes(record: Any) -> None:
    before = nn.Module.train
    run = record(train(early=True, evaluated=True))
    assert run.rank.events_of(Altered) == evaluated(run) == []
    assert nn.Module.train is before


@pytest.mark.parametrize(
    "line",
    [
        '{"type":"altered","step":0,"module":"layers"}',
        '{"type":"altered","step":"first","microbatch":0,"module":"layers"}',
        '{"type":"altered","step":0,"microbatch":-1,"module":"layers"}',
    ],
)
def test_a_malformed_altered_event_is_refused(line: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        decoder().decode(line)
    sound = Site("mode", "", name="layers")
    assert fault_of(decoder().decode(msgspec.json.encode(sound))) == ""
