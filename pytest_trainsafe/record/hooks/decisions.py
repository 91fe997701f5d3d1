"""Decisions: choices that rounding may turn around, such as the experts that a router picks.

In low precision a correct candidate chooses otherwise than its reference for some tokens, and
everything after that differs.  So a module whose output is annotated as a decision is recorded
as it chose, and in a Run that follows the reference it yields what the reference chose.
Called by the recorder of activations.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from pytest_trainsafe.align.logical import logical_tensor
from pytest_trainsafe.core.indices import LayoutError, extract
from pytest_trainsafe.core.layout import Layout
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.record.clock import ProgramError
from pytest_trainsafe.trace.reader import Trace


class Replayed:
    """The decisions of the Run at `path`, as a rank at these coordinates holds them."""

    def __init__(self, path: str, coordinates: Mapping[str, int], sizes: Mapping[str, int]) -> None:
        self.path = Path(path)
        self.coordinates = coordinates
        self.sizes = sizes
        self._trace: Trace | None = None

    def part(self, where: TensorId, own: torch.Tensor, layout: Layout) -> torch.Tensor:
        """This rank's part of what was decided there; `own` where nothing of its shape was."""
        if self._trace is None:
            self._trace = Trace.open(self.path)
        if not self._trace.holders(where):
            return own
        whole = logical_tensor(self._trace, where).tensor
        if whole is None or whole.ndim != own.ndim:
            return own
        try:
            part = extract(whole, layout, self.coordinates, self.sizes)
        except LayoutError:
            return own
        return part.to(own.device, own.dtype) if part.shape == own.shape else own


def require_decision(name: str, args: object, output: object) -> tuple[torch.Tensor, torch.Tensor]:
    """The scores that a module was given and the indices it chose of their last dimension.

    Raises ProgramError where a module that is annotated as a decision does something else.
    """
    scores = args[0] if isinstance(args, tuple) and args else None
    if (
        isinstance(scores, torch.Tensor)
        and scores.is_floating_point()
        and isinstance(output, torch.Tensor)
        and output.dtype == torch.int64
        and output.shape[:-1] == scores.shape[:-1]
    ):
        return scores, output
    raise ProgramError(
        f"{name} is annotated as a decision, so it takes scores [..., options] as its first "
        "argument and returns one int64 tensor [..., chosen] of the options' numbers; put just "
        "the choice into a module of its own, or remove the annotation"
    )
