"""A dataset whose augmentation of an example is the same in every worker."""

from __future__ import annotations

import operator
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset

from pytest_trainsafe.core.usage import shown
from pytest_trainsafe.errors import ArgumentError, ArgumentTypeError
from pytest_trainsafe.judges.replay.per_example.keys import example_key, per_example_generator

#: Takes an example of the dataset and its generator; returns what the loader receives.
Transform = Callable[[Any, torch.Generator], Any]


class PerExampleDataset(Dataset[Any]):
    """A map-style dataset that reads each example with random numbers of its own.

    While an example is read, torch's default CPU generator, Python's `random` and NumPy's
    global generator are seeded with the example's key, and restored afterwards. The key is a hash
    of `seed`, `stream`, the epoch and the example's index (`per_example_keys`). So random
    augmentation in `dataset[index]` that draws from these generators draws the same numbers in
    every worker process, and also without workers. Generators that the dataset makes itself are
    left alone.
    `transform` receives the example and a separate generator, and returns what is loaded. The
    seeds apply to the whole process: do not read from several threads at once.

    Call `set_epoch` before each iteration over the loader, as with a DistributedSampler. The
    epoch is in shared memory, so that persistent workers see it. An example is identified by
    its index in this dataset: wrap a dataset before a Subset selects from it.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        transform: Transform | None = None,
        *,
        seed: int = 0,
        stream: str = "data",
    ) -> None:
        if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
            raise ArgumentTypeError(
                f"PerExampleDataset was given {shown(dataset)}, which cannot be read by index; "
                "pass a map-style dataset, because the examples of a stream have no numbers"
            )
        if transform is not None and not callable(transform):
            raise ArgumentTypeError(
                f"transform must be a function of an example and a generator, not "
                f"{shown(transform)}"
            )
        example_key(0, 0, seed, stream)  # raises for invalid arguments here, and not in a worker
        self.dataset, self.transform = dataset, transform
        self.seed, self.stream = seed, stream
        self._epoch = torch.zeros((), dtype=torch.int64)
        self._epoch.share_memory_()  # type: ignore[no-untyped-call]

    @property
    def epoch(self) -> int:
        """The epoch whose random numbers are used, counted from 0."""
        return int(self._epoch)

    def set_epoch(self, epoch: int) -> None:
        """Uses the random numbers of this epoch from now on, in all workers.

        Raises ArgumentError or ArgumentTypeError unless `epoch` is an integer from 0 to 2**63 - 1.
        """
        example_key(epoch, 0, self.seed, self.stream)
        if operator.index(epoch) >= 2**63:
            raise ArgumentError(
                f"epoch={shown(epoch)} is too large; count epochs from 0 to 2**63 - 1"
            )
        self._epoch.fill_(epoch)

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]

    def __getitem__(self, index: Any) -> Any:
        epoch = self.epoch
        with _seeded(example_key(epoch, index, self.seed, self.stream)):
            example = self.dataset[index]
            if self.transform is None:
                return example
            stream = f"{self.stream}/transform"
            generator = per_example_generator(epoch, index, seed=self.seed, stream=stream)
            return self.transform(example, generator)


@contextmanager
def _seeded(key: int) -> Iterator[None]:
    """Seeds the process's default generators with `key` in this context, and then restores them."""
    torch_state, python_state = torch.default_generator.get_state(), random.getstate()
    numpy_state = np.random.get_state()
    torch.default_generator.manual_seed(key)
    random.seed(key)
    np.random.seed(key & 0xFFFFFFFF)
    try:
        yield
    finally:
        torch.default_generator.set_state(torch_state)
        random.setstate(python_state)
        np.random.set_state(numpy_state)
