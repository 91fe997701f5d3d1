"""The gradients of a step as they are before the program clips them, and the norm it clips by.

Called by the parameter recorder.  Whether a clip is the step's last word on its gradients is
known only when the optimizer steps: a program may clip what each micro-batch adds.  So they are
taken when the clip begins, and written when the optimizer does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

import torch

from pytest_trainsafe.core.layout import Layout
from pytest_trainsafe.core.tensor_id import CLIP_NORM, TensorId
from pytest_trainsafe.record.clock import Clock
from pytest_trainsafe.record.layouts.dtensor import is_dtensor
from pytest_trainsafe.record.training.clipping import Clip
from pytest_trainsafe.record.training.tensors import local_values
from pytest_trainsafe.trace.run_spec import RunSpec
from pytest_trainsafe.trace.schema import NoteEvent
from pytest_trainsafe.trace.tensors.taken import Taken
from pytest_trainsafe.trace.writer import RankWriter

#: A tensor that was taken and is yet to be written, with its layout and where that came from.
Waiting = tuple[TensorId, Taken, Layout, str]


class Unclipped:
    """Holds what one step's first clip found; `gradients` takes the gradients as they are."""

    def __init__(
        self,
        spec: RunSpec,
        clock: Clock,
        writer: RankWriter,
        parameters: Mapping[str, torch.Tensor],
        gradients: Callable[[], Iterator[Waiting]],
    ) -> None:
        self.spec = spec
        self.clock = clock
        self.writer = writer
        self.parameters = parameters
        self.gradients = gradients
        self._held: list[Waiting] = []
        self._norms: list[Waiting] = []
        self._taken = False
        self._functions: list[str] = []
        self._noted: set[NoteEvent] = set()

    def take(self, clip: Clip) -> None:
        """A clip begins: take the gradients, unless an earlier clip of the step changed them."""
        if clip.how == "nothing" and not self._has_gradient(clip):
            return  # a norm of something else
        if not self._taken and self.spec.records("unclipped_grad"):
            self._held = list(self.gradients())
        self._taken = True
        if clip.how != "nothing":
            self._functions.append(clip.function)
        if clip.norm is not None and self.spec.records("grad_norm") and self._of_all(clip):
            self._take_norm(clip.norm, clip.limit)

    def forget(self) -> None:
        """A gradient arrives after the clip: it was not of the whole step's gradients."""
        if self._taken:
            self.end_step()

    def write(self) -> None:
        """The optimizer begins, so that what was clipped is what it uses."""
        for held in (*self._held, *self._norms):
            self.writer.add_taken(*held)
        for function in self._functions:
            note = NoteEvent("clipped", function)
            if note not in self._noted:
                self._noted.add(note)
                self.writer.add(note)
        self.end_step()

    def end_step(self) -> None:
        """Let go of what was taken."""
        self._held, self._norms, self._functions = [], [], []
        self._taken = False

    def _take_norm(self, norm: torch.Tensor, limit: float | None) -> None:
        """Take the norm so far as it matters: one below the limit changes nothing."""
        if limit is None or not math.isfinite(limit):
            return
        if is_dtensor(norm):
            # Each rank has the norm of its shards.  To scale them by it, the clip function is
            # about to make the same reduction on the same ranks.
            norm = norm.full_tensor()  # type: ignore[attr-defined]
        step = self.clock.step
        assert step is not None
        where = TensorId(step, None, "grad_norm", "", CLIP_NORM, len(self._norms))
        value = local_values(norm).clamp(min=limit)
        self._norms.append((where, self.writer.take(where, value, ()), (), "default"))

    def _has_gradient(self, clip: Clip) -> bool:
        """Whether a norm is taken of a watched gradient."""
        given = {id(tensor) for tensor in clip.parameters or ()}
        return any(id(p.grad) in given for p in self.parameters.values() if p.grad is not None)

    def _of_all(self, clip: Clip) -> bool:
        """Whether every gradient of this rank is clipped together.

        Norms of some of them have no name that is the same on every stage of a pipeline.
        """
        if clip.parameters is None:
            return True
        given = {id(tensor) for tensor in clip.parameters}
        trained = [holders for p in self.parameters.values() if (holders := _with_gradient(p))]
        return bool(trained) and all(
            any(id(tensor) in given for tensor in holders) for holders in trained
        )


def _with_gradient(parameter: torch.Tensor) -> list[torch.Tensor]:
    """Those of a parameter and its master copy that have a gradient."""
    both = (parameter, getattr(parameter, "main_param", None))
    return [each for each in both if isinstance(each, torch.Tensor) and each.grad is not None]
