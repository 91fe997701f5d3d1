"""Slips in what data sets hold, and in batches that come again, are noticed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
    get_worker_info,
)

from tests.support.learn.slips import net, sgd, slips_of, steps

ROWS = torch.arange(96.0).view(24, 4)


class Augmented(Dataset[Tensor]):
    """Rows with noise, which is added to the row itself if `writes`."""

    def __init__(self, kind: str, writes: bool) -> None:
        self.writes = writes
        self.rows: Any = ROWS.clone()
        if kind == "list":
            self.rows = [(each, 0) for each in self.rows.unbind()]
        elif kind == "array":
            self.rows = ROWS.numpy().copy()

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Tensor:
        row = self.rows[index]
        row = torch.as_tensor(row[0] if isinstance(row, tuple) else row)
        return row.add_(0.1) if self.writes else row + 0.1


def trained(loader: DataLoader[Any], epochs: int = 2) -> None:
    model = net()
    optimizer = sgd(model)
    for _ in range(epochs):
        for _ in loader:
            steps(model, optimizer)


@pytest.mark.parametrize("writes", [False, True])
@pytest.mark.parametrize("kind", ["tensor", "list", "array"])
def test_an_augmentation_that_writes_to_the_stored_rows(kind: str, writes: bool) -> None:
    def program() -> None:
        trained(DataLoader(Augmented(kind, writes), batch_size=4, shuffle=True))

    assert slips_of(program) == ["data-overwritten"] * writes


def test_a_cache_that_is_filled_in_the_first_epoch_is_no_slip() -> None:
    class Cached(Augmented):
        def __init__(self) -> None:
            super().__init__("tensor", writes=False)
            self.cache, self.known = torch.zeros(24, 4), numpy.zeros(24, bool)

        def __getitem__(self, index: int) -> Tensor:
            if not self.known[index]:
                self.cache[index], self.known[index] = self.rows[index], True
            return self.cache[index].clone()

    assert slips_of(lambda: trained(DataLoader(Cached(), batch_size=4, shuffle=True), 3)) == []


@pytest.mark.parametrize(
    ("batches", "slips"),
    [("cycle", ["batches-reused"]), ("new", []), ("one", []), ("in order", [])],
)
def test_batches_of_an_epoch_that_come_again(batches: str, slips: list[str]) -> None:
    def program() -> None:
        loader = DataLoader(TensorDataset(ROWS), batch_size=6, shuffle=batches != "in order")
        source: Iterator[Any] = itertools.cycle(loader)
        if batches == "new":
            source = itertools.chain.from_iterable(iter(loader) for _ in range(3))
        elif batches == "one":  # a test that a model can fit one batch
            source = itertools.repeat(next(iter(list(loader))))
        model = net()
        optimizer = sgd(model)
        for (rows,) in itertools.islice(source, 10):
            optimizer.zero_grad()
            model(rows).square().mean().backward()
            optimizer.step()

    assert slips_of(program) == slips


@pytest.mark.parametrize(
    ("held_out", "slips"),
    [(range(16, 24), []), (range(12, 20), ["validation-overlaps"]), (range(16), [])],
)
def test_examples_of_the_training_in_the_validation(held_out: range, slips: list[str]) -> None:
    def program() -> None:
        data = TensorDataset(ROWS)
        training = DataLoader(Subset(data, range(16)), batch_size=4, shuffle=True)
        validation = DataLoader(Subset(data, held_out), batch_size=4)
        for _ in range(2):
            trained(training, 1)
            list(validation)

    assert slips_of(program) == slips


class Stream(IterableDataset[Tensor]):
    """Rows in their order; each worker yields its share only if `shares`."""

    def __init__(self, shares: bool) -> None:
        self.shares = shares

    def __iter__(self) -> Iterator[Tensor]:
        worker = get_worker_info()
        apart = self.shares and worker is not None
        yield from ROWS[worker.id :: worker.num_workers] if worker and apart else ROWS


@pytest.mark.parametrize("shares", [False, True])
def test_workers_that_read_the_same_stream(shares: bool) -> None:
    def program() -> None:
        trained(DataLoader(Stream(shares), batch_size=4, num_workers=2), 1)

    assert slips_of(program) == ["batches-doubled"] * (not shares)


@pytest.mark.parametrize("count", [24, 3])
def test_how_many_weights_a_sampler_has(count: int) -> None:
    def program() -> None:
        sampler = WeightedRandomSampler([1.0] * count, 24)
        trained(DataLoader(TensorDataset(ROWS), batch_size=4, sampler=sampler), 1)

    assert slips_of(program) == ["weights-per-class"] * (count == 3)
