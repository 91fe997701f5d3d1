"""A sampler is blamed if it gives the order of another epoch, whenever a program sets the epoch."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, RandomSampler, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from pytest_trainsafe import TrainsafeFailure, assert_resumable
from pytest_trainsafe.core.finding import Finding
from tests.support.replay.in_process import traces_here
from tests.support.replay.resume_cause_programs import WIDTH, Loop, Program, examples

PER_EPOCH, BATCH = 2, 2
DATA = TensorDataset(examples(0, PER_EPOCH * BATCH))


def lazily(ctx: Any, lost: str = "") -> None:
    """Set the sampler's epoch at the first batch that the training reads in an epoch."""
    sampler: Any = DistributedSampler(DATA, 1, 0, seed=ctx.seed)
    read(ctx, lost, sampler)


class SeedsByEpoch(RandomSampler):
    """A sampler with an order of its own, as accelerate's SeedableRandomSampler."""

    def __init__(self) -> None:
        super().__init__(DATA, generator=torch.Generator())
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        self.generator.manual_seed(self.epoch)
        yield from super().__iter__()


def with_a_sampler_of_its_own(ctx: Any, lost: str = "") -> None:
    read(ctx, lost, SeedsByEpoch())


def in_one_order(ctx: Any, lost: str = "") -> None:
    """Read the same order in every epoch, so that no epoch matters."""
    sampler: Any = DistributedSampler(DATA, 1, 0, shuffle=False)
    read(ctx, lost, sampler)


def read(ctx: Any, lost: str, sampler: Any) -> None:
    loop = Loop(ctx, lost, torch.nn.Linear(WIDTH, WIDTH), epoch=0, position=0)
    loader = DataLoader(DATA, BATCH, sampler=sampler)
    state, batches = loop.state, None
    for _ in loop.steps():
        if batches is None:
            sampler.set_epoch(state["epoch"])
            batches = iter(loader)
            for _ in range(state["position"]):
                next(batches)
        [x] = next(batches)
        loop.train_on(x)
        state["position"] += 1
        if state["position"] == PER_EPOCH:
            state["epoch"], state["position"], batches = state["epoch"] + 1, 0, None


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


PROGRAMS = [lazily, with_a_sampler_of_its_own, in_one_order]


@pytest.mark.parametrize("program", PROGRAMS)
def test_an_epoch_and_a_position_that_are_restored_have_no_finding(tmp_path, program):
    assert findings_of(program, "", tmp_path) == []


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_lost_position_is_not_blamed_on_the_epoch_that_is_set_at_the_first_batch(
    tmp_path, program
):
    [finding] = findings_of(program, "position", tmp_path)

    assert finding.check == "resume:data_order"
    assert "step 3, micro-batch 0 of rank 0 reads the batch that the uninterrupted" in (
        finding.message
    )
    assert "epoch" not in finding.message
    assert finding.pattern is not None
    assert "set_epoch" not in finding.pattern.cause


@pytest.mark.parametrize(
    ("program", "sampler"),
    [(lazily, "DistributedSampler"), (with_a_sampler_of_its_own, "SeedsByEpoch")],
)
def test_an_epoch_that_is_not_restored_is_named(tmp_path, program, sampler):
    [finding] = findings_of(program, "epoch", tmp_path)

    assert finding.check == "resume:data_order"
    assert f"on rank 0 {sampler}.epoch is 0, not 1; step 3, micro-batch 0" in finding.message


def test_an_epoch_without_effect_on_the_order_has_no_finding(tmp_path):
    assert findings_of(in_one_order, "epoch", tmp_path) == []
