"""The loops of workers that data loaders start are replaced, and run torch's own loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from pytest_trainsafe.compat import loaders
from pytest_trainsafe.compat.private import lacking


class Numbers(Dataset[int]):
    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> int:
        return index


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter([0, 1])


class Loop:
    """Writes a line for each fetch of a worker."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        loaders.run_loop(self.around, *args, **kwargs)

    def around(
        self, worker: int, dataset: Any, by_index: bool, fetch: Callable[[Any], Any]
    ) -> Callable[[Any], Any]:
        def fetching(index: Any) -> Any:
            with self.file.open("a") as file:
                file.write(f"{worker} {type(dataset).__name__} {by_index}\n")
            return fetch(index)

        return fetching


def batches(dataset: Any, workers: int = 1) -> list[list[int]]:
    return [batch.tolist() for batch in DataLoader(dataset, batch_size=2, num_workers=workers)]


def test_the_classes_of_iterators_include_those_with_and_without_workers() -> None:
    made = iter(DataLoader(Numbers()))
    assert isinstance(made, loaders.iterator_classes())
    assert len(loaders.iterator_classes()) >= 3


@pytest.mark.parametrize(
    ("dataset", "line"), [(Numbers(), "0 Numbers True"), (Stream(), "0 Stream False")]
)
def test_a_replaced_loop_sees_each_fetch_of_its_worker(
    dataset: Any, line: str, tmp_path: Path
) -> None:
    file = tmp_path / "fetches"
    with loaders.replaced_loops(lambda: Loop(file)):
        assert batches(dataset) == [[0, 1]]
    assert file.read_text().splitlines()[0] == line
    count = len(file.read_text().splitlines())
    assert batches(dataset) == [[0, 1]]
    assert len(file.read_text().splitlines()) == count


def test_none_leaves_the_loop_of_torch() -> None:
    asked = []
    with loaders.replaced_loops(lambda: asked.append(1)):
        assert batches(Numbers()) == batches(Numbers(), workers=0) == [[0, 1]]
    assert asked == [1]


def test_without_its_names_loaders_run_and_no_loop_is_made(without: Any) -> None:
    copy = without("loaders")
    with copy.replaced_loops(lambda: pytest.fail("a loop was made")):
        assert batches(Numbers()) == [[0, 1]]
    assert copy.iterator_classes() == ()
    assert [why.partition(":")[0] for why in lacking()] == [
        "batches of data loaders are not observed",
        "random draws in worker processes of data loaders are not recorded",
    ]
    assert torch.utils.data.get_worker_info() is None
