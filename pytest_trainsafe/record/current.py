"""The context of a script, which the script gets by calling `context()`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from pytest_trainsafe.annotations.declared import Annotations
from pytest_trainsafe.record.clock import Clock
from pytest_trainsafe.record.context import Context
from pytest_trainsafe.record.model.initialize import Filled
from pytest_trainsafe.record.model.inputs import ModelInputs
from pytest_trainsafe.record.model.parts import Model
from pytest_trainsafe.trace.run_spec import RunSpec

_current: Context | None = None
_alone: Context | None = None


def context() -> Context:
    """The context of the Run that this script is part of.

    Without a Run, returns a context that records nothing, so that the script also runs alone:
    in float32, on a GPU if there is one, with all ranks on the dp axis.
    """
    global _alone
    if _current is not None:
        return _current
    if _alone is None:
        _alone = _unrecorded()
    return _alone


def set_context(ctx: Context | None) -> None:
    """Sets the context that `context()` returns.  Called before and after a script's Run."""
    global _current
    _current = ctx


class Unrecorded:
    """Replaces the Recorder when nothing is recorded."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.inputs: ModelInputs | None = None

    def watch(
        self,
        model: Model,
        optimizer: Any,
        annotations: Annotations,
        filled: Mapping[int, Filled] | None = None,
        level: str = "microbatch",
    ) -> None:
        """Records nothing."""

    def step(self) -> Iterator[int]:
        """Yields the number of the step."""
        number = self.clock.start_step()
        try:
            yield number
        finally:
            self.clock.end_step()

    def microbatch(self, index: int) -> Iterator[int]:
        """Yields `index`; checks, like a Recorder, that micro-batch numbers are not reused."""
        self.clock.start_microbatch(index)
        try:
            yield index
        finally:
            self.clock.end_microbatch()

    def save(self, path: Path | None) -> Iterator[Path | None]:
        """Yields the folder that the program names."""
        yield path

    def load(self, path: Path | None) -> Iterator[Path | None]:
        """Yields the folder that the program names."""
        yield path

    def loss(self, value: torch.Tensor | float, microbatch: int | None) -> None:
        """Records nothing."""

    def grad_norm(self, value: torch.Tensor | float) -> None:
        """Records nothing."""

    def meta(self, values: Mapping[str, object]) -> None:
        """Records nothing."""


def _unrecorded() -> Context:
    spec = RunSpec(
        program="",
        axes=(("dp", int(os.environ.get("WORLD_SIZE", "1"))),),
        dtype="float32",
    )
    return Context(spec, Unrecorded(), "cuda" if torch.cuda.is_available() else "cpu")
