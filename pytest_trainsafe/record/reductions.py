"""Notes the collectives by which a program reduces its gradients, for reports to name.

Attached by the recorder to the rank's ledger.  Not heard: what C++ calls by itself (the buckets
of torch's DistributedDataParallel).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from types import FrameType

import msgspec
import torch

from pytest_trainsafe.launch.collective import Collective
from pytest_trainsafe.launch.passing import is_stdlib, passes_on
from pytest_trainsafe.record.clock import Clock
from pytest_trainsafe.record.tensors import local_values
from pytest_trainsafe.sweep.point import MESH_AXES, Point
from pytest_trainsafe.trace.schema import NoteEvent
from pytest_trainsafe.trace.writer import RankWriter

_TORCH = os.path.dirname(torch.__file__) + os.sep

#: What adds up the ranks' terms.
_SUMS = frozenset(
    {"all_reduce", "all_reduce_coalesced", "reduce", "reduce_scatter", "reduce_scatter_tensor"}
)


class Reduction(msgspec.Struct, frozen=True):
    """A call such as "all_reduce(SUM)", the axes of its group, and its line.

    `caller` is the nearest line of another file that led there, "" for none: frameworks have
    their collectives in functions of their own.
    """

    call: str
    axes: tuple[str, ...]
    site: str
    caller: str

    def __str__(self) -> str:
        return f"{self.call} over {' and '.join(self.axes)}"


class Reductions:
    """Each different reduction once, as a note.  `parameters` are those that are trained.

    Taken for reductions of gradients are calls with a tensor that is one, that has as many
    elements as a parameter (a copy of its gradient), or as many as the largest (a bucket).
    """

    def __init__(
        self, clock: Clock, writer: RankWriter, point: Point, parameters: Iterable[torch.Tensor]
    ) -> None:
        self._clock = clock
        self._writer = writer
        self._point = point
        self._sizes = {local_values(parameter).numel() for parameter in parameters}
        self._told: set[Reduction] = set()

    def heard(self, call: Collective) -> None:
        """A collective is about to run."""
        if self._clock.step is None or call.op not in _SUMS or not self._of_gradients(call):
            return
        axes = self._axes(call.ranks)
        # Within a micro-batch the model communicates too, but never over dp alone.
        inside = self._clock.open is not None or torch._C._current_graph_task_id() != -1
        if not axes or (inside and axes != ["dp"]):
            return
        how = f"({call.reduce})" if call.reduce else ""
        made = Reduction(f"{call.op}{how}", tuple(axes), call.site, _called_at(call.site))
        if made not in self._told:
            self._told.add(made)
            self._writer.add(NoteEvent("reduction", msgspec.json.encode(made).decode()))

    def _of_gradients(self, call: Collective) -> bool:
        if call.numel is None:  # several tensors at once
            return True
        if call.name.endswith(".grad"):
            return True
        floating = call.dtype.startswith(("float", "bfloat"))
        fits = call.numel in self._sizes or call.numel >= max(self._sizes, default=0)
        return floating and call.numel > 1 and fits

    def _axes(self, ranks: tuple[int, ...]) -> list[str]:
        places = [self._point.coordinates(rank) for rank in ranks]
        return [axis for axis in MESH_AXES if len({place[axis] for place in places}) > 1]


def _called_at(site: str) -> str:
    """file:line of the nearest caller of `site`, a file:line on the stack, in another file."""
    file, _, line = site.rpartition(":")
    at_site = (file, int(line))
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (frame.f_code.co_filename, frame.f_lineno) != at_site:
        frame = frame.f_back
    while frame is not None:
        at = frame.f_code.co_filename
        between = at == file or at.startswith((_TORCH, "<")) or passes_on(at) or is_stdlib(at)
        if not between:
            return f"{at}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
