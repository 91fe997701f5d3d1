"""The Context: what a training program is given, and the lines it adds to be recorded."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from pytest_trainsafe.annotations.declared import Annotations
from pytest_trainsafe.annotations.entries import AnnotationError
from pytest_trainsafe.core.mesh import ranks_along
from pytest_trainsafe.core.precision import precision
from pytest_trainsafe.record.asked import AskedCoordinates, AskedPoint
from pytest_trainsafe.record.clock import ProgramError
from pytest_trainsafe.record.marks import Marks
from pytest_trainsafe.record.microbatches import SPLIT, Order, numbers_of
from pytest_trainsafe.record.model.initialize import Filled, Std, default_std, fill
from pytest_trainsafe.record.model.parts import Model
from pytest_trainsafe.record.pipelining import follow
from pytest_trainsafe.record.training.clipping import before_clip
from pytest_trainsafe.trace.run_spec import RunSpec

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from pytest_trainsafe.record.current import Unrecorded
    from pytest_trainsafe.record.recorder import Level, Recorder

#: A YAML file, or what one would hold.
AnnotationSource = str | os.PathLike[str] | Mapping[str, Any] | None


class Context:
    """One rank's view of a Run: where it stands, what to train in, and how to be recorded."""

    def __init__(self, spec: RunSpec, recorder: Recorder | Unrecorded, device: str = "cpu") -> None:
        self.point = AskedPoint(spec.point)
        self.rank = int(os.environ.get("RANK", "0"))
        self.world_size = int(os.environ.get("WORLD_SIZE", "1"))
        self.coordinates = AskedCoordinates(self.point, self.rank)
        self.dtype = precision(spec.dtype).dtype
        self.device = _device(device)
        self.seed = spec.seed
        self._spec = spec
        self._recorder = recorder
        self._mesh: DeviceMesh | None = None
        self._groups: dict[str, dist.ProcessGroup] = {}
        self._filled: dict[int, Filled] = {}
        #: What is open between `begin_step` and `end_step`; entered around the program.
        self.marks = Marks(self.step, self.microbatch)

    # Where the rank stands.

    @property
    def mesh(self) -> DeviceMesh:
        """A DeviceMesh with the program's mesh axes, by default `pp dp cp tp`, outermost first.

        Made on first use, with its process groups.
        Starts torch.distributed (gloo on CPU, NCCL and gloo on GPUs) unless the program did.
        """
        if self._mesh is None:
            _start_distributed(self.device)
            from torch.distributed.device_mesh import init_device_mesh

            names = self.point.mesh.axes
            shape = tuple(self.point.size(axis) for axis in names)
            self._mesh = init_device_mesh(self.device.type, shape, mesh_dim_names=names)
        return self._mesh

    def group(self, axis: str) -> dist.ProcessGroup:
        """The process group of this rank along one mesh axis, also where the axis has size 1.

        Also along a role that several axes have, such as "dp", or an overlapping axis, such as
        "ep".  Such a group is made on first use, which all ranks must reach in the same order.
        """
        mesh = self.point.mesh
        if axis in mesh.axes:
            return self.mesh.get_group(axis)
        if axis not in self.coordinates.derived:
            known = ", ".join(dict.fromkeys((*mesh.axes, *self.coordinates.derived)))
            raise ProgramError(
                f"ctx.group({axis!r}): there is no such axis at this Point; use one of {known}"
            )
        if axis not in self._groups:
            self.point.asked.add(axis)
            _start_distributed(self.device)
            # torch gives the function no types.
            make: Any = dist.new_subgroups_by_enumeration
            self._groups[axis], _ = make(ranks_along(self.point.sizes, axis))
        return self._groups[axis]

    # The same logical values at every Point.

    def initialize(
        self,
        model: Model,
        std: Std = default_std,
        annotations: AnnotationSource = None,
    ) -> None:
        """Fill every parameter from a hash of its name (TTrace 4.2).

        A parameter that is sharded as a DTensor, by attributes in Megatron-LM's convention, or
        by `annotations` (those of `watch`) receives its part of the logical tensor.
        `std(name, logical_shape)` gives mean and standard deviation; by default weights have
        1/sqrt(fan_in), biases 0.02, and norms' scales a mean of 1.
        """
        found = _annotations(annotations)
        self._filled |= fill(model, self.point, self.coordinates, self.seed, std, found)

    def watch(
        self,
        model: Model,
        optimizer: Any = None,
        annotations: AnnotationSource = None,
        level: Level = "microbatch",
    ) -> None:
        """Record this model and optimizer from now on.  Call once, before the first step.

        A pipeline rank gives what it holds of the model: one module or a list of chunks whose
        names are the whole model's, or a dict of parts by the names that the whole gives them,
        `{"layers.4": ..., "layers.5": ...}`.

        With `level="step"` only whole steps are compared: initial parameters, the gradients that
        the optimizer is given, their norm, updates, and the losses that `ctx.loss` is given.  For
        programs whose micro-batches have no counterparts in the reference.  They mark steps, and
        no micro-batches; what a step computes is theirs, as long as all dp ranks together compute
        the same at every Point.
        """
        self._recorder.watch(model, optimizer, _annotations(annotations), self._filled, level)

    # Time.

    @contextmanager
    def step(self) -> Iterator[int]:
        """One optimizer step; yields its number, from 0."""
        yield from self._recorder.step()

    def microbatches(self, total: int, order: Order = "contiguous") -> Sequence[int]:
        """The global numbers of the micro-batches that this dp rank computes, of `total` a step.

        All dp ranks together do what the reference does one after the other.  `order` says which
        rank computes which:

        - "contiguous": rank r of n takes the r-th run of total/n numbers;
        - "strided": rank r takes r, r+n, r+2n and so on, as a distributed sampler of batches does;
        - "split": every rank takes all of them, and a slice of the batch of each.  Annotations say
          which dimension of an activation is cut (`dp_dim`), and gradients are terms of a sum;
        - a sequence of all numbers: rank r takes its r-th run;
        - a function of a dp rank and the number of dp ranks, which returns that rank's numbers.
        """
        self._recorder.clock.split = isinstance(order, str) and order == SPLIT
        return numbers_of(total, self.coordinates["dp"], self.point.size("dp"), order)

    @contextmanager
    def microbatch(self, index: int) -> Iterator[int]:
        """One forward and backward; `index` is the micro-batch's global number in its step.

        Where a pipeline schedule runs them apart, enter it for the forward, and again for the
        backward or for the forward of another chunk.  A backward outside of every micro-batch
        belongs to the one whose outputs it reaches, if it is one.
        """
        yield from self._recorder.microbatch(index)

    def begin_step(self) -> int:
        """Begin an optimizer step, as entering `with ctx.step():` does; returns its number.

        For loops that a framework owns: `end_step` ends it, from another function.
        """
        return self.marks.begin_step()

    def end_step(self) -> None:
        """End the step that `begin_step` began.  The optimizer has stepped by then."""
        self.marks.end_step()

    def begin_microbatch(self, index: int) -> None:
        """Begin the micro-batch of this global number, as entering `with ctx.microbatch` does."""
        self.marks.begin_microbatch(index)

    def end_microbatch(self) -> None:
        """End the micro-batch that `begin_microbatch` began."""
        self.marks.end_microbatch()

    def follow(self, stages: Any, total: int, order: Order = "contiguous") -> Sequence[int]:
        """Mark the micro-batches that torch.distributed.pipelining runs, of `total` a step.

        Takes this rank's stage, or a list of its stages, before the first step; gives the global
        numbers of this dp rank's micro-batches, in the `order` of `microbatches`.
        """
        numbers = self.microbatches(total, order)
        held = stages if isinstance(stages, list | tuple) else [stages]
        follow(held, numbers, self._recorder.clock, self.microbatch)
        return numbers

    # What the program reports.

    def loss(self, value: torch.Tensor | float, microbatch: int | None = None) -> None:
        """Record the loss of this micro-batch, or of `microbatch`, as the program reports it.

        With `ctx.watch(..., level="step")` it is the loss of the step: what this dp rank
        reports of its part, or all of them together.
        """
        self._recorder.loss(value, microbatch)

    def grad_norm(self, value: torch.Tensor | float) -> None:
        """Record the global gradient norm as the program reports it; once a step."""
        self._recorder.grad_norm(value)

    def before_clip(
        self, norm: torch.Tensor | float | None = None, max_norm: float | None = None
    ) -> None:
        """Say that the program is about to clip its gradients by code of its own.

        Called between the last reduction and the clipping, on every rank, with the norm and the
        limit by which it clips.  torch's clip functions are seen without it.
        """
        before_clip(norm, max_norm)


def _start_distributed(device: torch.device) -> None:
    """Start torch.distributed, unless the program did; a process by itself is a world of one."""
    if dist.is_initialized():
        return
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    if "RANK" in os.environ:
        dist.init_process_group(backend)
    else:
        store = torch._C._distributed_c10d.HashStore()
        dist.init_process_group(backend, store=store, rank=0, world_size=1)


def _device(name: str) -> torch.device:
    if name == "cuda":
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    return torch.device(name)


def _annotations(given: AnnotationSource) -> Annotations:
    if given is None:
        return Annotations.empty()
    if isinstance(given, Mapping):
        return Annotations.of(given)
    if not isinstance(given, str | os.PathLike):
        raise AnnotationError(
            f"annotations is a {type(given).__name__}; it is the path of a YAML file, or the "
            "mapping that one would hold"
        )
    return Annotations.read(Path(given))
