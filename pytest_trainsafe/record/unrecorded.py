"""What takes the recorder's place in a script that runs by itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from pytest_trainsafe.annotations.declared import Annotations
from pytest_trainsafe.record.clock import Clock
from pytest_trainsafe.record.model.initialize import Filled
from pytest_trainsafe.record.model.inputs import ModelInputs
from pytest_trainsafe.record.model.parts import Model


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
