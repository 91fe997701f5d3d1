"""The iterators of data loaders, and what runs in the processes of their workers.

Needs `_BaseDataLoaderIter`, `_MultiProcessingDataLoaderIter` and `_DatasetKind` of
torch.utils.data.dataloader, and `_worker_loop` of torch.utils.data._utils.worker.  torch 2.10 to
2.14 have all of these names.

Without the first, batches of data loaders are not observed.  Without the others, the draws of
worker processes are not recorded.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.utils.data import get_worker_info

from pytest_trainsafe.compat.private import Capability

ITERATORS = Capability("batches of data loaders are not observed")
WORKERS = Capability("random draws in worker processes of data loaders are not recorded")

_LOADER, _WORKER = "torch.utils.data.dataloader", "torch.utils.data._utils.worker"

_base = ITERATORS.of(_LOADER, "_BaseDataLoaderIter")
_with_workers = WORKERS.of(_LOADER, "_MultiProcessingDataLoaderIter")
_kinds = WORKERS.of(_LOADER, "_DatasetKind")
_module = WORKERS.of("torch.utils.data._utils", "worker")

#: torch's own loop of a worker.  A replacement must not store it: a function is pickled by its
#: name, and when a worker starts, this name refers to the replacement.
_LOOP: Any = WORKERS.of(_WORKER, "_worker_loop")

#: Runs a worker of a data loader.
Loop = Callable[..., None]

#: Given the number of a worker, its dataset, whether it fetches by index, and the function that
#: fetches; returns the function that is called in place of that.
Around = Callable[[int, Any, bool, Callable[[Any], Any]], Callable[[Any], Any]]


def iterator_classes() -> tuple[type, ...]:
    """The classes of the iterators over data loaders."""
    return () if _base is None else (_base, *_base.__subclasses__())


@contextmanager
def replaced_loops(make: Callable[[], Loop | None]) -> Iterator[None]:
    """Replaces the loops of workers that loaders start in this context.

    `make` is called for each iterator that starts workers; its result, which is pickled if workers
    are spawned, replaces their loop.  None leaves torch's own.
    """
    if not WORKERS.available:
        yield
        return
    initialise = _with_workers.__init__

    @functools.wraps(initialise)
    def making(made: Any, *args: Any, **kwargs: Any) -> None:
        loop = make()
        _module._worker_loop = _LOOP if loop is None else loop
        try:
            initialise(made, *args, **kwargs)
        finally:
            _module._worker_loop = _LOOP

    _with_workers.__init__ = making
    try:
        yield
    finally:
        _with_workers.__init__ = initialise


def run_loop(around: Around, *args: Any, **kwargs: Any) -> None:
    """Runs torch's own loop in a worker, with `around` each function that fetches."""
    create = _kinds.create_fetcher

    def created(which: int, dataset: Any, *rest: Any, **more: Any) -> Any:
        fetcher = create(which, dataset, *rest, **more)
        info = get_worker_info()
        if info is not None:
            fetcher.fetch = around(info.id, dataset, which == _kinds.Map, fetcher.fetch)
        return fetcher

    _kinds.create_fetcher = staticmethod(created)
    _LOOP(*args, **kwargs)
