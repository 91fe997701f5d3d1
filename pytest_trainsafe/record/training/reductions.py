"""Records the collectives with which a program reduces its gradients, so that reports name them.

The recorder calls `Reductions.on_collective` before each collective.  Collectives that C++ code
starts by itself (the buckets of torch's DistributedDataParallel) are not seen.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from types import FrameType

import torch

from pytest_trainsafe.core.code_files import calling_frames, line_of
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.launch.collectives.collective import Collective
from pytest_trainsafe.launch.collectives.ledger import AND_MORE
from pytest_trainsafe.record.clock import Clock, in_backward
from pytest_trainsafe.record.tensors import local_values
from pytest_trainsafe.trace.facts import MAX_SIZES, Of, Reduction
from pytest_trainsafe.trace.writer import RankWriter

#: Operations that sum over ranks.
_SUMS = frozenset(
    {"all_reduce", "all_reduce_coalesced", "reduce", "reduce_scatter", "reduce_scatter_tensor"}
)


#: A collective may reduce several small parameters together.  SMALL is the maximum number of
#: elements of each of them, and MAX_TOGETHER that of all together.
SMALL, MAX_TOGETHER = 2**16, 2**20

#: The folder of torch's code that starts backwards, and that runs autograd functions.
_AUTOGRAD = f"{Path(torch.autograd.__file__).parent}{os.sep}"

#: This package's code: the recorder, and its loops for frameworks.
_OURS = ("ours", "fixture")


class Reductions:
    """Records the collectives that reduce gradients or their norm; equal ones only once.

    `parameters` are the model's parameters.  A collective that reduces several tensors at once
    counts as a reduction of gradients.  A collective that reduces one tensor does so if

    - the tensor is a gradient, or a buffer that begins with one,
    - it has as many elements as a parameter (a copy of its gradient),
    - it has as many elements as several small parameters together (norms and biases), or
    - it has at least as many elements as the largest parameter (a bucket).

    A reduction of a single number counts as a reduction of the norm of the gradients.  Inside of a
    micro-batch only reductions over dp alone are recorded, those that a hook on gradients calls
    over dp and cp, and those whose tensor is known to be a gradient or a buffer that begins with
    one.  Inside of an optimizer's step, any reduction of several floating-point numbers counts as
    one of gradients, because the optimizer may pad or stack them.
    """

    def __init__(
        self, clock: Clock, writer: RankWriter, point: Point, parameters: Iterable[torch.Tensor]
    ) -> None:
        self._clock = clock
        self._writer = writer
        self._point = point
        numels = [local_values(parameter).numel() for parameter in parameters]
        self._sizes = set(numels)
        self._small = [numel for numel in numels if numel <= SMALL]
        self._sums: int | None = None
        self._spanned: dict[tuple[int, ...], list[str]] = {}
        self._noted: set[Reduction] = set()
        self._lines: Counter[tuple[str, str]] = Counter()

    def on_collective(self, call: Collective) -> None:
        """Records `call`, which is about to run, if it reduces gradients or their norm."""
        if self._clock.step is None or call.op not in _SUMS:
            return
        numel = _numel(call)
        of_norm = numel == 1 and _floating(call)
        if not of_norm and not self._of_gradients(call, numel):
            return
        axes = self._axes(call.ranks)
        inside = self._clock.open is not None or in_backward()
        roles = {self._point.mesh.role(axis) for axis in axes}
        if not axes or (inside and not _named_gradient(call) and (of_norm or _of_model(roles))):
            return
        how = f"({call.reduce})" if call.reduce else ""
        name, caller = f"{call.op}{how}", called_at(call.site)
        of: Of = "norm" if of_norm else "gradients"
        in_step = self._clock.stepping and not inside
        made = Reduction(
            name, tuple(axes), call.site, caller, numel, of, in_step, call.asynchronous
        )
        line = f"{of} {name} {axes}", f"{call.site} {caller}"
        if made not in self._noted and self._lines[line] < MAX_SIZES:
            self._noted.add(made)
            self._lines[line] += 1
            self._writer.add(made)

    def _of_gradients(self, call: Collective, numel: int | None) -> bool:
        if numel is None:  # several tensors at once
            return True
        if _named_gradient(call):
            return True
        if not _floating(call) or numel == 1:
            return False
        if self._clock.stepping:
            return True
        largest = max(self._sizes, default=0)
        return numel in self._sizes or numel >= largest or self._is_sum(numel)

    def _is_sum(self, numel: int) -> bool:
        """Whether some of the small parameters have `numel` elements in total."""
        if numel > MAX_TOGETHER:
            return False
        if self._sums is None:
            # Bit n is set if some subset of the small parameters has n elements in total.
            self._sums, within = 1, (2 << min(MAX_TOGETHER, sum(self._small))) - 1
            for small in self._small:
                self._sums |= (self._sums << small) & within
        return bool(self._sums >> numel & 1)

    def _axes(self, ranks: tuple[int, ...]) -> list[str]:
        """The mesh axes along which the ranks of a group differ; there are few groups."""
        found = self._spanned.get(ranks)
        if found is None:
            found = self._spanned[ranks] = [*self._point.axes_between(ranks)]
        return found


def _numel(call: Collective) -> int | None:
    """The number of elements that a collective is given; None if it is given several tensors.

    `reduce_scatter` is described by its output, and given a list of parts, one for each rank.
    """
    if call.op == "reduce_scatter" and call.gives is not None:
        return sum(call.gives)
    return call.numel


def _of_model(roles: set[str]) -> bool:
    """Whether a reduction inside of a micro-batch over axes of these roles may be the model's own.

    The model itself never reduces over dp alone.  Over cp it does so in its forward and in the
    backward of its autograd functions, and not in hooks on gradients, as overlapped buckets are.
    """
    if roles == {"dp"}:
        return False
    return not roles <= {"dp", "cp"} or not in_backward() or _in_autograd_function()


def _in_autograd_function() -> bool:
    """Whether the innermost call of autograd on the stack is the backward of a function."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not frame.f_code.co_filename.startswith(_AUTOGRAD):
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename == torch.autograd.function.__file__


def _named_gradient(call: Collective) -> bool:
    """Whether the tensor of a collective has the name of a gradient, or begins with one."""
    return call.name.removesuffix(AND_MORE).endswith(".grad")


def _floating(call: Collective) -> bool:
    return call.dtype.startswith(("float", "bfloat"))


def called_at(site: str) -> str:
    """file:line of the nearest caller of `site` (a file:line on the stack) in another file."""
    file, _, line = site.rpartition(":")
    at_site = (file, int(line))
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (frame.f_code.co_filename, frame.f_lineno) != at_site:
        frame = frame.f_back
    callers = (each for each, owner in calling_frames(frame) if owner not in _OURS)
    return next((line_of(each) for each in callers if each.f_code.co_filename != file), "")
