"""The Context: the object that a training program receives and reports to."""

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
from pytest_trainsafe.record.clock import ProgramError
from pytest_trainsafe.record.marks import Marks
from pytest_trainsafe.record.microbatches import SPLIT, MicrobatchOrder, numbers_of, permuted
from pytest_trainsafe.record.model.initialize import Filled, Std, default_std, fill
from pytest_trainsafe.record.model.parts import Model
from pytest_trainsafe.record.pipelining import follow
from pytest_trainsafe.record.tracked_point import TrackedCoordinates, TrackedPoint
from pytest_trainsafe.record.training.clipping import before_clip
from pytest_trainsafe.trace.run_spec import RunSpec

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from pytest_trainsafe.record.current import Unrecorded
    from pytest_trainsafe.record.recorder import Level, Recorder

#: A YAML file, or what one would hold.
AnnotationSource = str | os.PathLike[str] | Mapping[str, Any] | None


class Context:
    """One rank's view of a Run: its position, what to train on, and the recording methods."""

    def __init__(self, spec: RunSpec, recorder: Recorder | Unrecorded, device: str = "cpu") -> None:
        self.point = TrackedPoint(spec.point)
        self.rank = int(os.environ.get("RANK", "0"))
        self.world_size = int(os.environ.get("WORLD_SIZE", "1"))
        self.coordinates = TrackedCoordinates(self.point, self.rank)
        self.dtype = precision(spec.dtype).dtype
        self.device = _device(device)
        self.seed = spec.seed
        self._spec = spec
        self._recorder = recorder
        self._mesh: DeviceMesh | None = None
        self._groups: dict[str, dist.ProcessGroup] = {}
        self._filled: dict[int, Filled] = {}
        #: The steps and micro-batches of `begin_step` and the like; entered around the program.
        self.marks = Marks(self.step, self.microbatch)

    # The position of the rank.

    @property
    def mesh(self) -> DeviceMesh:
        """A DeviceMesh with the program's mesh axes, by default `pp dp cp tp`, outermost first.

        Made on first use, with its process groups.
        Initialises torch.distributed (gloo on CPU, NCCL and gloo on GPUs) unless the program did.
        """
        if self._mesh is None:
            _start_distributed(self.device)
            from torch.distributed.device_mesh import init_device_mesh

            names = self.point.mesh.axes
            shape = tuple(self.point.size(axis) for axis in names)
            self._mesh = init_device_mesh(self.device.type, shape, mesh_dim_names=names)
        return self._mesh

    def group(self, axis: str) -> dist.ProcessGroup:
        """The process group of this rank along one mesh axis, even if the axis has size 1.

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
            self.point.axes_read.add(axis)
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
        """Fills every parameter with values that depend on its name and the seed (TTrace 4.2).

        A parameter that is sharded as a DTensor, by attributes in Megatron-LM's convention, or
        by `annotations` (as for `watch`) gets its part of the logical tensor.
        `std(name, logical_shape)` returns mean and standard deviation; by default weights have
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
        """Records this model and optimizer from now on.  Call once, before the first step.

        A pipeline rank passes its part of the model: one module or a list of chunks with the
        names of the whole model, or a dict of parts by their names in the whole model,
        `{"layers.4": ..., "layers.5": ...}`.

        With `level="step"` only whole steps are compared: initial parameters, the gradients that
        the optimizer uses, their norm, updates, and the losses passed to `ctx.loss`.  This is for
        programs whose micro-batches have no counterparts in the reference.  They mark steps but no
        micro-batches; they may divide a step as they like, as long as all dp ranks together
        compute the same at every Point.
        """
        self._recorder.watch(model, optimizer, _annotations(annotations), self._filled, level)

    # Time.

    @contextmanager
    def step(self) -> Iterator[int]:
        """One optimizer step; yields its number, from 0."""
        yield from self._recorder.step()

    def microbatches(self, total: int, order: MicrobatchOrder = "contiguous") -> Sequence[int]:
        """The global numbers of this dp rank's micro-batches, of `total` per step.

        The reference runs all of them; dp ranks divide them.  `order` says how:

        - "contiguous": rank r of n takes the r-th block of total/n numbers;
        - "strided": rank r takes r, r+n, r+2n and so on, as a distributed sampler does;
        - "split": every rank takes all of them, with a slice of each batch.  Annotations say
          which dimension of an activation is split (`dp_dim`), and gradients are terms of a sum;
        - a sequence of all numbers: rank r takes its r-th block;
        - a function of a dp rank and the number of dp ranks, which returns that rank's numbers.
        """
        self._recorder.clock.split = isinstance(order, str) and order == SPLIT
        numbers = numbers_of(total, self.coordinates["dp"], self.point.size("dp"), order)
        return permuted(numbers, total, self._spec.order)

    @contextmanager
    def microbatch(self, index: int) -> Iterator[int]:
        """One forward and backward; `index` is the micro-batch's global number in its step.

        If a pipeline schedule separates them, enter it for the forward, and again for the
        backward or for the forward of another chunk.  A backward outside of every micro-batch
        belongs to the micro-batch whose outputs it reaches, if there is exactly one.
        """
        yield from self._recorder.microbatch(index)

    def begin_step(self) -> int:
        """Begins an optimizer step, as entering `with ctx.step():` does; returns its number.

        For loops that a framework owns; call `end_step` from another callback.
        """
        return self.marks.begin_step()

    def end_step(self) -> None:
        """Ends the step that `begin_step` began.  The optimizer must have stepped."""
        self.marks.end_step()

    def begin_microbatch(self, index: int) -> None:
        """Begins the micro-batch of this global number, like `with ctx.microbatch`."""
        self.marks.begin_microbatch(index)

    def end_microbatch(self) -> None:
        """Ends the micro-batch that `begin_microbatch` began."""
        self.marks.end_microbatch()

    def follow(
        self, stages: Any, total: int, order: MicrobatchOrder = "contiguous"
    ) -> Sequence[int]:
        """Marks the micro-batches that torch.distributed.pipelining runs, of `total` per step.

        Takes this rank's stage, or a list of its stages, before the first step; returns the global
        numbers of this dp rank's micro-batches, in the `order` of `microbatches`.
        """
        numbers = self.microbatches(total, order)
        held = stages if isinstance(stages, list | tuple) else [stages]
        follow(held, numbers, self._recorder.clock, self.microbatch)
        return numbers

    # Checkpoints, for `assert_resumable`.

    @contextmanager
    def save(self, path: str | os.PathLike[str] | None = None) -> Iterator[Path | None]:
        """Put around the code that saves a checkpoint, between two steps.

        Yields the folder to save into, or None where nothing is to be saved: in a test only the
        Runs of `assert_resumable` save, and only after one step.  Outside of tests it yields
        `path`, the program's own.  What is drawn inside is in the phase "save" of the RNG ledger.
        """
        yield from self._recorder.save(None if path is None else Path(path))

    @contextmanager
    def load(self, path: str | os.PathLike[str] | None = None) -> Iterator[Path | None]:
        """Put around the code that loads a checkpoint, before the first step.

        Yields the folder to load from, or None where the training begins anew: in a test only the
        resumed Runs of `assert_resumable` load.  Outside of tests it yields `path`.
        """
        yield from self._recorder.load(None if path is None else Path(path))

    @property
    def first_step(self) -> int:
        """The number of the first step: 0, or in a resumed Run the first after its checkpoint."""
        return self._spec.first_step

    def steps(self, total: int) -> range:
        """The numbers of the steps to take, of `total`: `for step in ctx.steps(4):`.

        They begin at `first_step`; a test may ask for another `total`.
        """
        if type(total) is not int or total < 1:
            raise ProgramError(
                f"ctx.steps was given {total!r}; it takes the number of steps of the whole training"
            )
        return range(self.first_step, self._spec.steps or total)

    # What the program reports.

    def loss(self, value: torch.Tensor | float, microbatch: int | None = None) -> None:
        """Records the loss of this micro-batch, or of `microbatch`, as the program reports it.

        With `ctx.watch(..., level="step")` it is the loss of the step, either of this dp rank's
        part or of all dp ranks together.
        """
        self._recorder.loss(value, microbatch)

    def grad_norm(self, value: torch.Tensor | float) -> None:
        """Records the global gradient norm that the program reports; once per step."""
        self._recorder.grad_norm(value)

    def meta(self, **values: bool | int | float | str | None) -> None:
        """Sets meta variables of the observed API calls that follow, such as `epoch=3`.

        Others than `epoch` are recorded as "user.NAME", and followed as attributes of the variable
        "program".  Does nothing in Runs that do not observe.
        """
        self._recorder.meta(values)

    def before_clip(
        self, norm: torch.Tensor | float | None = None, max_norm: float | None = None
    ) -> None:
        """Announces that the program is about to clip its gradients with code of its own.

        Call it between the last reduction and the clipping, on every rank, with the norm and the
        limit that the clipping uses.  torch's clip functions are detected without it.
        """
        before_clip(norm, max_norm)


def _start_distributed(device: torch.device) -> None:
    """Initialises torch.distributed unless the program did; a single process is a world of 1."""
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
            f"annotations is a {type(given).__name__}; it must be the path of a YAML file, or a "
            "mapping of the same form"
        )
    return Annotations.read(Path(given))
