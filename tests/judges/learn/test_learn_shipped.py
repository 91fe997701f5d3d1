"""The packs of the package: their contents, the faults they find, and no false alarm."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from pytest_trainsafe.judges.learn.check.applicable import exists
from pytest_trainsafe.judges.learn.check.offline import Checked, check
from pytest_trainsafe.judges.learn.events.events import Plain
from pytest_trainsafe.judges.learn.events.table import TableBuilder
from pytest_trainsafe.judges.learn.instrument.observation import Observation
from pytest_trainsafe.judges.learn.instrument.steps import Sample, Steps
from pytest_trainsafe.judges.learn.names import LIBRARIES
from pytest_trainsafe.judges.learn.packs.pack import Pack
from pytest_trainsafe.judges.learn.registry import relations
from pytest_trainsafe.judges.learn.run import ObservedRun
from pytest_trainsafe.judges.learn.use.deploy import (
    load_packs,
    observation_of,
    shipped_packs,
)
from pytest_trainsafe.reference_models import healthy, silent_errors

RELATIONS = relations()
NAMES = ("amp", "ddp", "deepspeed", "fsdp", "pytorch", "tensor_parallel")

#: Silent errors in one process, and the relation of the first rule that each breaks.
ERRORS = {
    "so-60335387": "renewed",
    "mm-702": "membership",
    "pt-f84911": "membership",
    "pt-115607": "contain",
}


@functools.cache
def shipped(name: str) -> Pack:
    """A pack of the package by its name, looked up from a folder without packs."""
    [pack] = load_packs([name], Path("/nowhere"), RELATIONS)
    return pack


def checked(train: Callable[[], object], *names: str) -> Checked:
    """The check of packs on a training in this process, which observes only what they need."""
    packs = [shipped(name) for name in names]
    wanted = observation_of(packs, RELATIONS)
    table, steps = TableBuilder(), Steps(Sample(), automatic=True)
    fixed: dict[str, Plain] = {"rank": 0, "world_size": 1}
    given = wanted.apis, wanted.variables, (table,), steps, fixed, wanted.contents
    with Observation(*given).active():
        train()
    return check(ObservedRun("", [table.table()]), packs, RELATIONS)


def test_no_shipped_rule_asks_ranks_for_loaders_of_one_size() -> None:
    """Ranks may hold shares of the data that differ in size, as under `Join`."""
    between_ranks = [
        invariant.claim
        for name in NAMES
        for invariant in shipped(name).invariants
        if invariant.claim.relation == "consistent"
    ]

    assert between_ranks
    assert not [each for each in between_ranks if each.text("variable") == "loader"]


def test_the_package_has_six_packs_without_contradictions() -> None:
    assert shipped_packs() == list(NAMES)
    load_packs(NAMES, Path("/nowhere"), RELATIONS)


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_pack_lists_its_programs_and_at_least_three_support_each_invariant(
    name: str,
) -> None:
    pack = shipped(name)

    assert pack.name == name
    assert len(pack.programs) >= 3
    assert all("torch" in versions for versions in pack.programs.values())
    own = [each for each in pack.invariants if each.claim.relation != "slip"]
    assert 3 <= len(own) <= 60
    for each in pack.invariants:
        assert each.programs >= 3
        assert {support.program for support in each.support} <= pack.programs.keys()


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_pack_names_only_existing_public_apis(name: str) -> None:
    for each in shipped(name).invariants:
        for api in filter(None, (each.claim.text("api"), each.claim.text("inner"))):
            assert api.partition(".")[0] in LIBRARIES
            assert not any(part.startswith("_") for part in api.split(".")[:-1])
            assert exists(api), api


@pytest.mark.parametrize("error", ERRORS)
def test_the_pytorch_and_amp_packs_report_a_silent_error_in_one_process(error: str) -> None:
    train = silent_errors.program(silent_errors.find(error))

    assert checked(functools.partial(train, faulty=False), "pytorch", "amp").violations == ()
    found = checked(functools.partial(train, faulty=True), "pytorch", "amp")
    assert found.violations[0].invariant.claim.relation == ERRORS[error]


@pytest.mark.parametrize(
    "name",
    [
        *("adversarial", "wgan", "translation", "closure"),
        *("soft_actor", "resumed", "freeze_out", "sharpness", "overflow"),
    ],
)
def test_a_healthy_program_has_no_violation_of_the_pytorch_and_amp_packs(name: str) -> None:
    train = healthy.program(healthy.find(name))
    found = checked(functools.partial(train, seed=5), "pytorch", "amp")

    assert found.violations == ()
    assert len(found.triggered) >= 5


def scaled(faulty: bool) -> None:
    """A training with a gradient scaler; with the fault, the loss is scaled after its backward."""
    torch.manual_seed(3)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    for _ in range(4):
        optimizer.zero_grad()
        loss = model(torch.randn(6, 4)).square().mean()
        if faulty:
            loss.backward()
            scaler.scale(loss)
        else:
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def test_the_amp_pack_reports_a_loss_that_is_scaled_after_its_backward() -> None:
    assert checked(functools.partial(scaled, False), "amp").violations == ()
    found = checked(functools.partial(scaled, True), "amp")
    [claim] = {each.invariant.claim for each in found.violations}
    assert (claim["form"], claim["api"]) == ("order", "torch.amp.GradScaler.scale")
