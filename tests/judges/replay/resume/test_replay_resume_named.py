"""State that is in no tensor of the model or the optimizer is named: averages, limits, flags."""

from __future__ import annotations

import copy
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from pytest_trainsafe import TrainsafeFailure, assert_resumable
from pytest_trainsafe.core.finding import Finding
from tests.support.replay.in_process import traces_here
from tests.support.replay.resume_cause_programs import WIDTH, Loop, Program, examples


def two_layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))


class Averaged(Loop):
    """A training with an average of the weights in a module, a dict or a list."""

    def __init__(self, ctx: Any, lost: str, kind: str) -> None:
        super().__init__(ctx, lost, two_layers())
        self.teacher = copy.deepcopy(self.model) if kind == "module" else nn.Module()
        self.average: Any = {n: p.detach().clone() for n, p in self.model.named_parameters()}
        if kind == "list":
            self.average = list(self.average.values())
        if kind == "module":
            self.average = None

    def averages(self) -> list[torch.Tensor]:
        if self.average is None:
            return [each.detach() for each in self.teacher.parameters()]
        return list(self.average.values() if isinstance(self.average, dict) else self.average)

    @torch.no_grad()
    def update(self) -> None:
        for mean, weight in zip(self.averages(), self.model.parameters(), strict=True):
            mean.lerp_(weight, 0.25)

    def saved(self) -> dict[str, Any]:
        return super().saved() | {"means": self.averages()}

    def load(self, saved: dict[str, Any]) -> None:
        super().load(saved)
        if self.lost != "average":
            for mean, value in zip(self.averages(), saved["means"], strict=True):
                mean.copy_(value)


def learns_from_a_teacher(ctx: Any, lost: str = "") -> None:
    loop = Averaged(ctx, lost, "module")
    for step in loop.steps():
        with ctx.microbatch(0):
            x = examples(step)
            loss = (loop.model(x) - loop.teacher(x).detach()).square().mean() + loop.model(x).mean()
            ctx.loss(loss)
            loss.backward()
        loop.update()


def averages_into(kind: str, ctx: Any, lost: str = "") -> None:
    loop = Averaged(ctx, lost, kind)
    for step in loop.steps():
        loop.train_on(examples(step))
        loop.update()


def averages_into_a_dict(ctx: Any, lost: str = "") -> None:
    averages_into("dict", ctx, lost)


def averages_into_a_list(ctx: Any, lost: str = "") -> None:
    averages_into("list", ctx, lost)


def clips_to_earlier_norms(ctx: Any, lost: str = "") -> None:
    loop = Loop(ctx, lost, two_layers(), norms=[1.0])
    for step in loop.steps():
        loop.train_on(examples(step))
        norms = loop.state["norms"]
        limit = 0.5 * sum(norms) / len(norms)
        norm = torch.nn.utils.clip_grad_norm_(loop.model.parameters(), limit, foreach=False)
        loop.state["norms"] = [*norms, float(norm)]


def freezes_its_first_layer(ctx: Any, lost: str = "") -> None:
    model = two_layers()
    loop = Loop(ctx, lost, model)
    if lost != "flags" or ctx.first_step == 0:
        for parameter in model[0].parameters():
            parameter.requires_grad_(False)
    for step in loop.steps():
        loop.train_on(examples(step))


def thaws_its_first_layer(ctx: Any, lost: str = "") -> None:
    """Train the first layer from the fifth step on, as a counter says."""
    model = two_layers()
    loop = Loop(ctx, lost, model, count=0)
    for step in loop.steps():
        for parameter in model[0].parameters():
            parameter.requires_grad_(loop.state["count"] >= 4)
        loop.state["count"] += 1
        loop.train_on(examples(step))


def freezes_before_each_loss(ctx: Any, lost: str = "") -> None:
    """Set the flags in each step, so that they need no checkpoint."""
    model = two_layers()
    loop = Loop(ctx, lost, model)
    for step in loop.steps():
        for parameter in model[0].parameters():
            parameter.requires_grad_(False)
        loop.train_on(examples(step))


class KeepsFrozen(Loop):
    """A training that loads no weights into its frozen first layer if it loses them."""

    def load(self, saved: dict[str, Any]) -> None:
        if self.lost == "frozen":
            own = self.model.state_dict()
            saved["model"] |= {name: own[name] for name in own if name.startswith("0.")}
        super().load(saved)


def adapts_frozen_weights(ctx: Any, lost: str = "") -> None:
    """Train the last layer; a resumed Run begins with other weights in the frozen first one."""
    model = two_layers()
    loop = KeepsFrozen(ctx, lost, model)
    with torch.no_grad():
        for parameter in model[0].parameters():
            parameter.requires_grad_(False)
            parameter.add_(0.0 if ctx.first_step else 1.0)
    for step in loop.steps():
        loop.train_on(examples(step))


#: A program, what it does not restore, the code, and words of the message.
FAULTS: list[tuple[Program, str, str, str]] = [
    (learns_from_a_teacher, "average", "average", "the module Sequential has other values when"),
    (
        averages_into_a_dict,
        "average",
        "average",
        "0 a dict with the names of the weights has other values",
    ),
    (
        averages_into_a_list,
        "average",
        "average",
        "0 a list with the shapes of the weights has other values",
    ),
    (clips_to_earlier_norms, "norms", "clip_limit", "in step 3, clip_grad_norm_ of rank 0 gets"),
    (freezes_its_first_layer, "flags", "frozen", "0.weight is trained, not frozen; 1 more of"),
    (thaws_its_first_layer, "count", "frozen", "0.weight is frozen, not trained; 1 more of"),
    (adapts_frozen_weights, "frozen", "model", "on rank 0 0.weight has different values; 1 more"),
]


def findings_of(program: Program, lost: str, folder: Path) -> Sequence[Finding]:
    @functools.wraps(program)
    def train(ctx: Any) -> None:
        program(ctx, lost)

    del train.__wrapped__
    try:
        assert_resumable(traces_here(train, folder, program=program), at_step=3)
    except TrainsafeFailure as failure:
        return failure.findings
    return []


@pytest.mark.parametrize(("program", "lost", "code", "words"), FAULTS)
def test_what_is_not_restored_is_named(tmp_path, program, lost, code, words):
    [finding] = findings_of(program, lost, tmp_path)

    assert (finding.check, finding.verdict) == (f"resume:{code}", "fail")
    assert words in finding.message


@pytest.mark.parametrize(
    "program", [*dict.fromkeys(program for program, *_ in FAULTS), freezes_before_each_loss]
)
def test_a_program_that_restores_it_has_no_finding(tmp_path, program):
    assert findings_of(program, "", tmp_path) == []


def test_an_average_is_not_blamed_for_what_follows_from_lost_weights(tmp_path):
    found = findings_of(learns_from_a_teacher, "weights", tmp_path)

    assert [each.check for each in found] == ["resume:model"]
