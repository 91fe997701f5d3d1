"""Slips in what batches are made of, and in how their losses are weighted, are noticed."""

from __future__ import annotations

import random

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from tests.support.learn.slips import net, sgd, slips_of, steps

COUNT = 24


def loader(data: Tensor, seed: int, *, shuffle: bool = True) -> DataLoader[tuple[Tensor, ...]]:
    generator = torch.Generator().manual_seed(seed)
    rows: Dataset[tuple[Tensor, ...]] = _Rows(data)
    return DataLoader(rows, batch_size=4, shuffle=shuffle, generator=generator)


class _Rows(Dataset[tuple[Tensor, ...]]):
    """Rows of a tensor, without a tuple around them."""

    def __init__(self, data: Tensor) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        return self.data[index]  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("other", "seed", "shuffle", "slips"),
    [
        ("labels", 1, True, ["orders-apart"]),
        ("labels", 0, True, []),
        ("labels", 1, False, []),
        ("inputs", 1, True, []),  # as an unpaired translation of images draws them
        ("fewer labels", 1, True, []),
    ],
)
@pytest.mark.parametrize("swapped", [False, True])
def test_labels_in_a_loader_of_their_own(
    other: str, seed: int, shuffle: bool, slips: list[str], swapped: bool
) -> None:
    def program() -> None:
        model = net()
        optimizer = sgd(model)
        count = COUNT - 4 * (other == "fewer labels")
        second = torch.randn(COUNT, 4) if other == "inputs" else torch.arange(count)
        pair = [loader(torch.randn(COUNT, 4), 0), loader(second, seed, shuffle=shuffle)]
        for _ in range(2):
            for _ in zip(*reversed(pair) if swapped else pair, strict=len(second) == COUNT):
                steps(model, optimizer)

    assert slips_of(program) == slips


class Noisy(Dataset[tuple[Tensor, ...]]):
    """Rows with noise, which is drawn from a generator of the dataset."""

    def __init__(self) -> None:
        self.noise = random.Random(0)
        self.start = self.noise.random()

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        return (torch.full((4,), self.drawn()),)

    def drawn(self) -> float:
        return self.noise.random()


class NoisyOnce(Noisy):
    """Rows with noise that was drawn once."""

    def drawn(self) -> float:
        return self.start


def first(worker: int) -> None:
    """An initialisation of workers."""


@pytest.mark.parametrize(
    ("rows", "workers", "initialised", "slips"),
    [
        (Noisy, 2, False, ["workers-alike"]),
        (Noisy, 2, True, []),
        (Noisy, 1, False, []),
        (NoisyOnce, 2, False, []),
    ],
)
def test_workers_with_copies_of_a_generator(
    rows: type[Noisy],
    workers: int,
    initialised: bool,
    slips: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def program() -> None:
        data = Subset(rows(), range(COUNT))
        made: DataLoader[tuple[Tensor, ...]] = DataLoader(
            data,
            num_workers=workers,
            worker_init_fn=first if initialised else None,
            multiprocessing_context="fork",
        )
        iter(made)

    monkeypatch.setattr("torch.utils.data.dataloader._MultiProcessingDataLoaderIter", _no_workers)
    assert slips_of(program) == slips


def _no_workers(loader: object) -> object:
    """Stands for an iterator whose workers do not start."""
    return iter(())


@pytest.mark.parametrize(
    ("kind", "slips"),
    [
        ("own mean", ["tokens-unweighted"]),
        ("own sum", ["tokens-unweighted"]),
        ("of all", []),
        ("equal", []),
        ("unpadded", []),
        ("with a penalty", []),
        ("one by one", []),
    ],
)
def test_how_padded_micro_batches_are_weighted(kind: str, slips: list[str]) -> None:
    def program() -> None:
        model = nn.Linear(4, 3)
        optimizer = sgd(model)
        for _ in range(3):
            optimizer.zero_grad()
            for valid in (3, 3) if kind == "equal" else (2, 6):
                rows = valid if kind == "unpadded" else 8
                labels = torch.arange(rows) % 3
                labels[valid:] = -100
                reduction = "mean" if kind in ("own mean", "unpadded") else "sum"
                loss = F.cross_entropy(model(torch.randn(rows, 4)), labels, reduction=reduction)
                if kind in ("own sum", "equal", "one by one"):
                    loss = loss / valid
                elif kind in ("of all", "with a penalty"):
                    loss = loss / 8
                if kind == "with a penalty":
                    loss = loss + 0.1 * model.weight.square().sum()
                (loss / 2).backward()
                if kind == "one by one":
                    optimizer.step()
            if kind != "one by one":
                optimizer.step()

    assert slips_of(program) == slips


def test_a_batch_of_pairs_is_no_loader_of_labels() -> None:
    def program() -> None:
        model = net()
        optimizer = sgd(model)
        pairs = TensorDataset(torch.randn(COUNT, 4), torch.arange(COUNT))
        two = [DataLoader(pairs, batch_size=4, shuffle=True) for _ in range(2)]
        for _ in zip(*two, strict=True):
            steps(model, optimizer)

    assert slips_of(program) == []
