"""Records the gradients of a step before the program clips them, and the norm used for the clip.

The parameter recorder calls this module.  A program may clip the contribution of each micro-batch,
so only the optimizer's step shows which clip was the last change to the gradients.  Therefore
snapshots are taken when a clip begins, and written when the optimizer steps.
"""

from __future__ import annotations

import inspect
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from types import FunctionType
from typing import Any

import torch

from pytest_trainsafe.core.code_files import owner_of, relative
from pytest_trainsafe.core.layout import Layout
from pytest_trainsafe.core.tensor_id import CLIP_NORM, TensorId
from pytest_trainsafe.record.clock import Clock
from pytest_trainsafe.record.layouts.dtensor import is_dtensor
from pytest_trainsafe.record.tensors import local_values
from pytest_trainsafe.record.training.clipping import Clip
from pytest_trainsafe.trace.run_spec import RunSpec
from pytest_trainsafe.trace.schema import NoteEvent
from pytest_trainsafe.trace.tensors.snapshot import TensorSnapshot
from pytest_trainsafe.trace.writer import RankWriter

#: Names that code that clips gradients uses.
_CLIPS = re.compile(r"clip|max_norm|grad_norm|global_norm|total_norm")

#: A snapshot that has yet to be written, with its id, its layout and the layout's source.
Waiting = tuple[TensorId, TensorSnapshot, Layout, str]


class Unclipped:
    """Holds snapshots of the gradients, which are taken when a step first clips them.

    `gradients` yields snapshots of the gradients that a clip is about to change.
    """

    def __init__(
        self,
        spec: RunSpec,
        clock: Clock,
        writer: RankWriter,
        parameters: Mapping[str, torch.Tensor],
        gradients: Callable[[Clip], Iterator[Waiting]],
    ) -> None:
        self.spec = spec
        self.clock = clock
        self.writer = writer
        self.parameters = parameters
        self.gradients = gradients
        self._held: list[Waiting] = []
        self._norms: list[Waiting] = []
        self._taken = False
        #: Whether a norm has exceeded its limit, and the functions whose norms have not.
        self._acted: torch.Tensor | bool = False
        self._idle: set[str] = set()
        self._seen = False
        #: Whether the program reports the norm of its gradients.
        self.norm_reported = False
        self._functions: list[str] = []
        self._limits: list[float] = []
        self._noted: set[NoteEvent] = set()

    def take(self, clip: Clip) -> None:
        """Takes snapshots of the gradients as `clip` begins, unless an earlier clip took them.

        Also takes the norm of the gradients, if the clip has one and clips all gradients of this
        rank.
        """
        if clip.how == "nothing" and not self._has_gradient(clip):
            return  # the norm of other tensors
        self._seen = True
        if not self._taken and self.spec.records("unclipped_grad"):
            self._held = list(self.gradients(clip))
        self._taken = True
        if clip.how != "nothing":
            self._functions.append(clip.function)
            self._limits += [] if clip.limit is None else [float(clip.limit)]
        if clip.norm is not None and clip.limit is not None:
            self._idle.add(clip.function)
            self._acted = self._acted | (local_values(clip.norm.detach()).max() > clip.limit)
        if clip.norm is not None and self.spec.records("grad_norm") and self._of_all(clip):
            self._take_norm(clip.norm, clip.limit)

    def forget(self) -> None:
        """Discards the snapshots of the gradients, if the program has clipped in this step.

        The recorder calls this when a backward yields a further gradient.  Snapshots that a clip
        took before then do not have the gradients of the whole step.
        """
        if self._taken:
            self.end_step()

    def write(self) -> None:
        """Writes the snapshots, and a NoteEvent for each new clip function, and each new limit.

        Called when the optimizer steps.  The snapshots then have the gradients of the whole step
        before the clip: if a backward had yielded a further gradient after the clip, `forget` would
        have discarded the snapshots.
        """
        for held in (*self._held, *self._norms):
            self.writer.add_snapshot(*held)
        notes = [NoteEvent("clipped", function) for function in self._functions]
        for note in (*notes, *(NoteEvent("clip_limit", repr(limit)) for limit in self._limits)):
            if note not in self._noted:
                self._noted.add(note)
                self.writer.add(note)
        self.end_step()

    def end_step(self) -> None:
        """Discards the snapshots of the gradients and of their norm."""
        self._held, self._norms, self._functions, self._limits = [], [], [], []
        self._taken = False

    def finish(self) -> None:
        """After the program, notes that no clip has had an effect, so that no norm was checked."""
        if self._idle and not bool(self._acted):
            by = ", ".join(sorted(self._idle))
            text = (
                f"the norm by which gradients are clipped ({by}): it stayed below its limit in "
                "every step, so a wrong norm has no effect; lower the limit in the test"
            )
            self.writer.add(NoteEvent("not_compared", text))
        known = self._seen or self.norm_reported or self.spec.perturbation
        own = "" if known else clips_by_itself(self.spec.program)
        if own:
            text = (
                f"the norm by which {own} seems to clip gradients; report it with ctx.grad_norm, "
                "or call ctx.before_clip(norm, limit)"
            )
            self.writer.add(NoteEvent("not_compared", text))

    def _take_norm(self, norm: torch.Tensor, limit: float | None) -> None:
        """Takes a snapshot of the larger of `norm` and `limit`: a smaller norm has no effect."""
        if limit is None or not math.isfinite(limit):
            return
        if is_dtensor(norm):
            # Each rank has the norm of its shards.  The clip function is about to make the same
            # reduction on the same ranks, to scale the shards.
            norm = norm.full_tensor()  # type: ignore[attr-defined]
        step = self.clock.step
        assert step is not None
        where = TensorId(step, None, "grad_norm", "", CLIP_NORM, len(self._norms))
        value = local_values(norm).clamp(min=limit)
        self._norms.append((where, self.writer.snapshot(where, value, ()), (), "default"))

    def _has_gradient(self, clip: Clip) -> bool:
        """Whether the norm of `clip` includes the gradient of one of the model's parameters."""
        given = {id(tensor) for tensor in clip.parameters or ()}
        return any(id(p.grad) in given for p in self.parameters.values() if p.grad is not None)

    def _of_all(self, clip: Clip) -> bool:
        """Whether `clip` clips all gradients of this rank.

        The norm of only a part of the gradients is not recorded, because it would have no name that
        is the same on all pipeline stages.
        """
        if clip.parameters is None:
            return True
        given = {id(tensor) for tensor in clip.parameters}
        trained = [holders for p in self.parameters.values() if (holders := _with_gradient(p))]
        return bool(trained) and all(
            any(id(tensor) in given for tensor in holders) for holders in trained
        )


def clips_by_itself(program: str) -> str:
    """A function that the program may call and that seems to clip gradients, with its "file:line".

    `program` is an import path "module:function"; functions are followed by their names.  One
    seems to clip if it uses the attribute `grad` and a name such as `max_norm` or `clip`.  Returns
    "" if none does, or if the program cannot be read.
    """
    name, _, function = program.partition(":")
    todo: list[Any] = [getattr(sys.modules.get(name), function, None)]
    seen: set[object] = set()
    while todo:
        found = todo.pop()
        found = inspect.unwrap(found) if isinstance(found, FunctionType) else found
        if not isinstance(found, FunctionType) or found in seen:
            continue
        seen.add(found)
        code = found.__code__
        if owner_of(code.co_filename) != "project":
            continue
        names = {*code.co_names, *code.co_varnames}
        if "grad" in names and any(_CLIPS.search(each) for each in names):
            at = relative(f"{code.co_filename}:{code.co_firstlineno}")
            return f"{found.__qualname__} ({at})"
        todo += [found.__globals__[each] for each in code.co_names if each in found.__globals__]
    return ""


def _with_gradient(parameter: torch.Tensor) -> list[torch.Tensor]:
    """The parameter and its master copy; leaves out each that is missing or has no gradient."""
    both = (parameter, getattr(parameter, "main_param", None))
    return [each for each in both if isinstance(each, torch.Tensor) and each.grad is not None]
