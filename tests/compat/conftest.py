"""Copies of the files of `compat` for a torch that lacks names, and a process group of one rank."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch.distributed as dist

from pytest_trainsafe.compat import private


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Loads a copy of a file of `compat` for a torch that lacks names, by default all of them.

    Until the end of the test, `private.lacking` knows the capabilities of the copy alone.
    """
    look = private._found
    monkeypatch.setattr(private, "_declared", [])

    def load(stem: str, *names: str) -> Any:
        def found(module: str, name: str) -> Any:
            lacks = not names or f"{module}.{name}".removesuffix(".") in names
            return None if lacks else look(module, name)

        monkeypatch.setattr(private, "_found", found)
        spec = importlib.util.find_spec(f"{private.__package__}.{stem}")
        assert spec is not None
        assert spec.loader is not None
        copy = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(copy)
        return copy

    return load


@pytest.fixture
def one_rank() -> Iterator[None]:
    """Starts torch.distributed with this process as its only rank."""
    made: Any = dist
    dist.init_process_group("gloo", store=made.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()
