"""Replaces main gradients just before the optimizer's step, so that the step is judged alone.

TTrace (section 4.2) generates consistent main gradients to examine the optimizer.  Here the
program's own main gradients are recorded first.  They are replaced in the memory that the
optimizer reads, by values that are the same logical tensors in the candidate and in the reference.
Called by the parameter recorder, in the Runs of a localisation.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import torch

from pytest_trainsafe.compat.dispatch_modes import without_modes
from pytest_trainsafe.core.indices import LayoutError, local_shape
from pytest_trainsafe.core.layout import Layout
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.judges.compare.events import noted, replacement, rewrite_key
from pytest_trainsafe.judges.compare.instrument.rewrite import Rewriter
from pytest_trainsafe.record.tensors import local_values, memory
from pytest_trainsafe.record.training.optimizer import owned_by
from pytest_trainsafe.trace.schema import NoteEvent


class GeneratedGradients:
    """Replaces one rank's main gradients by the values that the Run's `rewrite` describes.

    A trace notes every gradient that was replaced ("generated"), and every one that this rank's
    optimizer uses from memory that is not known, or lacks ("kept").
    """

    def __init__(self, rewriter: Rewriter) -> None:
        self._rewriter = rewriter
        self._owned: set[int] = set()
        self._read: set[int] = set()

    def begin(self, optimizers: Collection[Any]) -> None:
        """Finds the gradients that `optimizers` are about to use; call it before `replace`."""
        self._owned = {each for optimizer in optimizers for each in owned_by(optimizer)}
        self._read = {
            memory(parameter.grad)
            for optimizer in optimizers
            for parameter in _parameters(optimizer)
            if parameter.grad is not None
        } - {0}

    def replace(
        self, where: TensorId, parameter: torch.Tensor, gradient: torch.Tensor, layout: Layout
    ) -> None:
        """Replaces the main gradient `where` of a parameter in the memory that the step reads.

        That is the memory of `gradient`, which has `layout`, or of the gradient of the parameter's
        master copy.  Does nothing for a gradient that is not to be replaced.
        """
        target = self._rewriter.target.get(rewrite_key(where))
        if target is None or not gradient.numel():
            return
        master = getattr(parameter, "main_param", None)
        held = (gradient, master.grad if isinstance(master, torch.Tensor) else None)
        read = [each for each in held if each is not None and memory(each) in self._read]
        if not read:
            if {id(parameter), id(master)} & self._owned:
                self._note("kept", where)
            return
        rewriter, sizes = self._rewriter, self._rewriter.point.sizes
        with without_modes(), torch.no_grad():  # no line of the program writes here
            local = local_values(read[0])
            try:
                expected = local_shape(layout, rewriter.coordinates, sizes, target.shape)
            except (LayoutError, IndexError):
                expected = ()
            fits = expected in (tuple(local.shape), (local.numel(),))
            if not fits or local.layout != torch.strided or memory(local) not in self._read:
                self._note("kept", where)
                return
            values = replacement(
                where, target, rewriter.seed, local, layout, rewriter.coordinates, sizes
            )
            if rewriter.noise is not None:
                values = rewriter.noise(f"{where}/rewritten", values)
            local.copy_(values.view_as(local))
        self._note("generated", where)

    def absent(self, where: TensorId, parameter: torch.Tensor) -> None:
        """Notes "kept" if this rank's optimizer holds the parameter."""
        wanted = self._rewriter.target.get(rewrite_key(where)) is not None
        if wanted and id(parameter) in self._owned:
            self._note("kept", where)

    def _note(self, key: Any, where: TensorId) -> None:
        self._rewriter.writer.add(NoteEvent(key, noted(where.step, where.path)))


def _parameters(optimizer: Any) -> Iterator[torch.Tensor]:
    for group in getattr(optimizer, "param_groups", ()):
        yield from group["params"]
