"""Decisions: choices that rounding may change, such as the experts that a router selects.

In low precision, a correct candidate decides differently from its reference for some tokens, and
everything after that differs.  So the output of a module that is annotated as a decision is
recorded, and in a Run that replays the reference it is replaced by the reference's decision.
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
    """Reads the decisions that are recorded in the trace at `path`, for one rank.

    `coordinates` are the rank's coordinates on the axes of the Point, and `sizes` the sizes of the
    axes.
    """

    def __init__(self, path: str, coordinates: Mapping[str, int], sizes: Mapping[str, int]) -> None:
        self.path = Path(path)
        self.coordinates = coordinates
        self.sizes = sizes
        self._trace: Trace | None = None

    def part(self, where: TensorId, own: torch.Tensor, layout: Layout) -> torch.Tensor:
        """This rank's part of the recorded decision `where`, with the dtype and device of `own`.

        `own` is the decision that this rank made itself, and `layout` its layout.  Returns `own` if
        the trace has no decision `where`, or if this rank's part of it has another shape.
        """
        if self._trace is None:
            self._trace = Trace.open(self.path)
        if not self._trace.holders(where):
            return own
        whole = logical_tensor(self._trace, where).whole
        if whole is None or whole.ndim != own.ndim:
            return own
        try:
            part = extract(whole, layout, self.coordinates, self.sizes)
        except LayoutError:
            return own
        return part.to(own.device, own.dtype) if part.shape == own.shape else own


def require_decision(name: str, args: object, output: object) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns a decision module's scores, and the indices that it chose from their last dimension.

    `args` are the arguments of the module's call and `output` its result.  Raises ProgramError
    unless the first argument is a floating-point tensor, and the result an int64 tensor whose
    dimensions except for the last are those of the first argument.
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
        f"{name} is annotated as a decision, so it must take scores [..., options] as its first "
        "argument and return one int64 tensor [..., chosen] of option indices; put only "
        "the choice into a module of its own, or remove the annotation"
    )
