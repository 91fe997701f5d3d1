"""A loader gives the same augmented batches with any number of workers, persistent or not."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from pytest_trainsafe import PerExampleDataset
from pytest_trainsafe.errors import ArgumentError, ArgumentTypeError
from pytest_trainsafe.judges.replay.rng.ledger_rules import judge_rng


class Noisy(Dataset):
    """Examples that are augmented with the default generators of torch, NumPy and Python."""

    def __len__(self):
        return 12

    def __getitem__(self, index):
        noise = torch.rand(2, dtype=torch.float64) + np.random.rand() + random.random()
        return index + noise / 10


def jittered(example, generator):
    return example + torch.randn(2, generator=generator, dtype=torch.float64) / 100


def epochs(dataset, workers, persistent=False):
    """The batches of two epochs, in one tensor."""
    loader = DataLoader(
        dataset,
        batch_size=2,
        num_workers=workers,
        persistent_workers=persistent,
        multiprocessing_context="fork" if workers else None,
    )
    found = []
    for epoch in range(2):
        if isinstance(dataset, PerExampleDataset):
            dataset.set_epoch(epoch)
        found += list(loader)
    return torch.stack(found)


@pytest.fixture(scope="module")
def loaded_in_process():
    return epochs(PerExampleDataset(Noisy(), jittered, seed=5), 0)


@pytest.mark.filterwarnings("ignore:This DataLoader will create 4 worker processes")
@pytest.mark.parametrize(
    ("workers", "persistent"), [(1, False), (2, True), (2, False), (1, True), (4, False), (4, True)]
)
def test_worker_processes_load_the_same_batches_as_one_process(
    loaded_in_process, workers, persistent
):
    dataset = PerExampleDataset(Noisy(), jittered, seed=5)

    assert torch.equal(epochs(dataset, workers, persistent), loaded_in_process)


def test_without_per_example_dataset_batches_depend_on_the_number_of_workers():
    torch.manual_seed(0)
    one = epochs(Noisy(), 0)
    torch.manual_seed(0)

    assert not torch.equal(epochs(Noisy(), 2), one)


def test_every_example_has_different_noise_in_every_epoch(loaded_in_process):
    first, second = loaded_in_process.reshape(2, 12, 2)
    noise = torch.cat([first, second]) - torch.arange(12).repeat(2)[:, None]

    assert len(noise.unique()) == 48


def test_loading_does_not_change_the_states_of_the_default_generators():
    def states():
        numpy: Any = np.random.get_state()
        return torch.get_rng_state().tolist(), random.getstate(), numpy[1].tolist(), numpy[2:]

    def fails(_example, _generator):
        raise RuntimeError("cannot decode")

    before = states()

    PerExampleDataset(Noisy(), jittered)[3]
    with pytest.raises(RuntimeError, match="cannot decode"):
        PerExampleDataset(Noisy(), fails)[3]

    assert states() == before


@pytest.mark.parametrize("workers", [0, 2])
def test_rng_rules_find_no_fault_in_a_training_with_a_per_example_dataset(record, workers):
    def train(ctx):
        model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5))
        ctx.initialize(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        ctx.watch(model, optimizer)
        dataset = PerExampleDataset(Noisy(), jittered, seed=ctx.seed)
        own = torch.Generator().manual_seed(0)
        loader = DataLoader(dataset, 4, num_workers=workers, generator=own)
        for epoch in range(2):
            dataset.set_epoch(epoch)
            with ctx.step():
                for index, batch in enumerate(loader):
                    with ctx.microbatch(index):
                        model(batch.to(ctx.dtype)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
            model.eval()
            for batch in loader:
                model(batch.to(ctx.dtype))
            model.train()

    judgement = judge_rng(record(train).trace)

    assert (judgement.findings, judgement.not_compared) == ((), ())


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(3))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: PerExampleDataset(Stream()),
            ArgumentTypeError,
            "examples of a stream have no numbers",
        ),
        (lambda: PerExampleDataset(3), ArgumentTypeError, "read by index"),  # type: ignore[arg-type]
        (lambda: PerExampleDataset(Noisy(), seed=-1), ArgumentError, "seed=-1 is below 0"),
        (lambda: PerExampleDataset(Noisy()).set_epoch(-1), ArgumentError, "epoch=-1 is below 0"),
        (lambda: PerExampleDataset(Noisy()).set_epoch(2**70), ArgumentError, "is too large"),
        (
            lambda: PerExampleDataset(Noisy(), transform=5),  # type: ignore[arg-type]
            ArgumentTypeError,
            "transform must be a function .* not 5",
        ),
    ],
)
def test_streams_and_invalid_seeds_epochs_and_transforms_are_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()
