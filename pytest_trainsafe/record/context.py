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
from pytest_trainsafe.core.rank import Rank, is_launched
from pytest_trainsafe.core.rungs.rung import Enter
from pytest_trainsafe.core.rungs.table import rung_named
from pytest_trainsafe.core.usage import nearest
from pytest_trainsafe.record.clock import ProgramError
from pytest_trainsafe.record.model.initialize import Filled, Std, default_std, fill
from pytest_trainsafe.record.model.parts import Model
from pytest_trainsafe.record.model.shard_shapes import StoreExchange
from pytest_trainsafe.record.steps.marks import Marks
from pytest_trainsafe.record.steps.microbatches import SPLIT, MicrobatchOrder, numbers_of, permuted
from pytest_trainsafe.record.steps.pipelining import follow
from pytest_trainsafe.record.tracked_point import TrackedCoordinates, TrackedPoint
from pytest_trainsafe.record.training.clipping import before_clip
from pytest_trainsafe.trace.run_spec import RunSpec

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from pytest_trainsafe.record.model_recorder import Level
    from pytest_trainsafe.record.recorder import Recorder
    from pytest_trainsafe.record.unrecorded import Unrecorded

#: The path of a YAML file, or a mapping with the content of such a file; None for no annotations.
AnnotationSource = str | os.PathLike[str] | Mapping[str, Any] | None


class Context:
    """One rank's view of a Run: its coordinates, device, dtype and seed, and how to report to it.

    A training program receives it as its first argument, and marks its steps and micro-batches
    and reports its losses with it.
    """

    def __init__(
        self, spec: RunSpec, recorder: Recorder | Unrecorded, rank: Rank, device: str = "cpu"
    ) -> None:
        self.point = TrackedPoint(spec.point)
        self.rank = rank.rank
        self.world_size = rank.world_size
        self.coordinates = TrackedCoordinates(self.point, self.rank)
        #: What the program used of its context: "dtype", "initialize", "group tp" and the like.
        self.used: set[str] = set()
        self.device = rank.device(device)
        self.seed = spec.seed
        self._spec = spec
        self._recorder = recorder
        self._mesh: DeviceMesh | None = None
        self._groups: dict[str, dist.ProcessGroup] = {}
        self._filled: dict[int, Filled] = {}
        self._exchange = StoreExchange(self.rank)
        self._enter: Enter | None = None
        #: Implements `begin_step`, `end_step` and the like; encloses the whole program.
        self.marks = Marks(self.step, self.microbatch)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype to train in: that of the rung."""
        self.used.add("dtype")
        return rung_named(self._spec.dtype).dtype

    # The position of the rank.

    @property
    def mesh(self) -> DeviceMesh:
        """A DeviceMesh with the program's mesh axes, by default `pp dp cp tp`, outermost first.

        The mesh and its process groups are created on first use.  This initialises
        torch.distributed (gloo on CPU, NCCL and gloo on GPUs) unless the program has done so.
        """
        self.used.add("mesh")
        return self._device_mesh()

    def group(self, axis: str) -> dist.ProcessGroup:
        """The process group of this rank along one mesh axis, even if the axis has size 1.

        `axis` may also be a role that several mesh axes have, such as "dp", or an axis that
        overlaps others, such as "ep".  The group of a role or an overlapping axis is created on
        first use, so all ranks must make these first calls in the same order.  Raises ProgramError
        for an unknown axis.
        """
        mesh = self.point.mesh
        self.used.add(f"group {axis}")
        if axis in mesh.axes:
            return self._device_mesh().get_group(axis)
        if axis not in self.coordinates.derived:
            known = dict.fromkeys((*mesh.axes, *self.coordinates.derived))
            raise ProgramError(
                f"ctx.group({axis!r}): there is no such axis at this Point; use one of "
                f"{', '.join(known)}{nearest(axis, known)}"
            )
        if axis not in self._groups:
            self.point.axes_read.add(axis)
            _start_distributed(self.device)
            # torch gives the function no types.
            make: Any = dist.new_subgroups_by_enumeration
            self._groups[axis], _ = make(ranks_along(self.point.sizes, axis))
        return self._groups[axis]

    def _device_mesh(self) -> DeviceMesh:
        if self._mesh is None:
            _start_distributed(self.device)
            from torch.distributed.device_mesh import init_device_mesh

            names = self.point.mesh.axes
            shape = tuple(self.point.size(axis) for axis in names)
            self._mesh = init_device_mesh(self.device.type, shape, mesh_dim_names=names)
        return self._mesh

    # The same logical values at every Point.

    def enter(self, values: torch.Tensor) -> torch.Tensor:
        """Real values, such as data that the program reads, as numbers of the rung.

        A program needs it only at rungs that a project adds; in floating point, the values are
        returned as they are.
        """
        return values if self._enter is None else self._enter(values)

    def compute_in(self, enter: Enter) -> None:
        """Called when the rung encloses the program, with the function that `enter` calls."""
        self._enter = enter

    def initialize(
        self,
        model: Model,
        std: Std = default_std,
        annotations: AnnotationSource = None,
    ) -> None:
        """Fills every parameter with values that depend only on its name and the seed.

        A parameter that is sharded as a DTensor, by attributes in Megatron-LM's convention, or
        by `annotations` (as for `watch`) gets its part of the logical tensor.
        `std(name, logical_shape)` returns the mean and the standard deviation of a parameter.  By
        default weights have mean 0 and standard deviation 1/sqrt(fan_in), biases 0 and 0.02, and
        the scales of norms 1 and 0.1.  (TTrace, section 4.2, generates parameters like this.)
        The shards of a parameter may be unequal, as torch.chunk cuts 11 rows into 6 and 5, if
        torch.distributed is initialised by then (as by `ctx.group`); its ranks must make the same
        calls of this function.
        """
        self.used.add("initialize")
        found = _annotations(annotations, self.rank)
        given = self.point, self.coordinates, self.seed, std, found
        self._filled |= fill(model, *given, self._exchange, self._enter, self._filled)

    def watch(
        self,
        model: Model,
        optimizer: Any = None,
        annotations: AnnotationSource = None,
        level: Level = "microbatch",
    ) -> None:
        """Records this model and optimizer from now on.  Call it once, before the first step.

        `annotations` is the path of a YAML file, or a mapping of the same form, that declares the
        layouts of tensors.

        A pipeline rank passes its part of the model: one module or a list of chunks with the
        names of the whole model, or a dict of parts by their names in the whole model, such as
        `{"layers.4": ..., "layers.5": ...}`.

        With `level="step"` only whole steps are compared: initial parameters, the gradients that
        the optimizer uses, their norm, updates, and the losses passed to `ctx.loss`.  This is for
        programs whose micro-batches have no counterparts in the reference.  Such a program marks
        its steps but not its micro-batches.  It may divide a step in any way, as long as all dp
        ranks together compute the same step at every Point.
        """
        self._recorder.watch(
            model, optimizer, _annotations(annotations, self.rank), self._filled, level
        )

    # Time.

    @contextmanager
    def step(self) -> Iterator[int]:
        """Encloses one optimizer step; yields the step's number, counted from 0."""
        yield from self._recorder.step()

    def microbatches(self, total: int, order: MicrobatchOrder = "contiguous") -> Sequence[int]:
        """Returns the global numbers of the micro-batches that this dp rank computes in each step.

        `total` is the number of micro-batches of a step over all dp ranks; they are numbered from
        0.  The reference computes all of them, and dp ranks divide them as `order` says:

        - "contiguous": rank r of n takes the r-th block of total/n numbers;
        - "strided": rank r takes r, r+n, r+2n and so on, as a distributed sampler does;
        - "split": every rank takes all numbers, and computes a slice of each micro-batch.
          Annotations say which dimension of an activation is split (`dp_dim`), and each rank's
          gradients are terms of a sum over dp;
        - a sequence of all numbers: rank r takes its r-th block;
        - a function of a dp rank and the number of dp ranks, which returns that rank's numbers.
        """
        self.used.add("microbatches")
        self._recorder.clock.split = isinstance(order, str) and order == SPLIT
        numbers = numbers_of(total, self.coordinates["dp"], self.point.size("dp"), order)
        return permuted(numbers, total, self._spec.order)

    @contextmanager
    def microbatch(self, index: int) -> Iterator[int]:
        """Encloses the forward and backward of one micro-batch; yields `index`.

        `index` is the micro-batch's global number in its step, as `microbatches` returns it.  If a
        pipeline schedule separates forward and backward, enter the micro-batch for the forward, and
        again for the backward or for the forward of another chunk.  A backward outside of every
        micro-batch belongs to the micro-batch whose outputs it reaches, if there is exactly one.
        """
        yield from self._recorder.microbatch(index)

    def begin_step(self) -> int:
        """Begins an optimizer step, as entering `with ctx.step():` does; returns its number.

        For training loops inside a framework: call this from the callback at the start of a step,
        and `end_step` from the callback at its end.
        """
        return self.marks.begin_step()

    def end_step(self) -> None:
        """Ends the step that `begin_step` began.  Call it after the optimizer has stepped."""
        self.marks.end_step()

    def begin_microbatch(self, index: int) -> None:
        """Begins the micro-batch with this global number, as `with ctx.microbatch(index):` does."""
        self.marks.begin_microbatch(index)

    def end_microbatch(self) -> None:
        """Ends the micro-batch that `begin_microbatch` began."""
        self.marks.end_microbatch()

    def follow(
        self, stages: Any, total: int, order: MicrobatchOrder = "contiguous"
    ) -> Sequence[int]:
        """Marks the micro-batches that a schedule of torch.distributed.pipelining runs.

        Call it before the first step.  `stages` is this rank's stage, or a list of its stages;
        `total` and `order` have the same meaning as in `microbatches`.  Returns the global numbers
        of this dp rank's micro-batches.
        """
        numbers = self.microbatches(total, order)
        held = stages if isinstance(stages, list | tuple) else [stages]
        follow(held, numbers, self._recorder.clock, self.microbatch)
        return numbers

    # Checkpoints, for `assert_resumable`.

    @contextmanager
    def save(self, path: str | os.PathLike[str] | None = None) -> Iterator[Path | None]:
        """Encloses the code that saves a checkpoint, between two steps.

        Yields the folder to save into, or None if nothing is to be saved. In a test only the
        Runs of `assert_resumable` save, and only once, after the step that the test names.
        Outside of tests it yields `path`, the program's own folder. Random numbers that are drawn
        in this context belong to the phase "save" in the ledger of random draws.
        """
        yield from self._recorder.save(None if path is None else Path(path))

    @contextmanager
    def load(self, path: str | os.PathLike[str] | None = None) -> Iterator[Path | None]:
        """Encloses the code that loads a checkpoint, before the first step.

        Yields the folder to load from, or None if the training starts from the beginning. In a
        test only the resumed Runs of `assert_resumable` load. Outside of tests it yields
        `path`, the program's own folder.
        """
        yield from self._recorder.load(None if path is None else Path(path))

    @property
    def first_step(self) -> int:
        """The number of the first step: 0, or that of the first step after a loaded checkpoint."""
        return self._spec.first_step

    def steps(self, total: int) -> range:
        """Returns the numbers of the steps to take, as in `for step in ctx.steps(4):`.

        `total` is the number of steps of the whole training, unless a test sets another number.
        The range starts at `first_step`.
        """
        if type(total) is not int or total < 1:
            raise ProgramError(
                f"ctx.steps was given {total!r}; pass the number of steps of the whole training, "
                "an integer of at least 1"
            )
        return range(self.first_step, self._spec.steps or total)

    # What the program reports.

    def loss(self, value: torch.Tensor | float, microbatch: int | None = None) -> None:
        """Records the loss that the program reports for a micro-batch.

        `microbatch` is the micro-batch's global number, by default that of the current one.  With
        `ctx.watch(..., level="step")` the value is the loss of the step: either the mean over this
        dp rank's part or the mean over all dp ranks.
        """
        self._recorder.loss(value, microbatch)

    def batch(self, value: Any) -> None:
        """Records a batch as what the model reads in the current micro-batch, or in the step.

        For loops that call a method of the model, as Lightning calls `training_step`: the inputs of
        the model itself are recorded without this call.  `value` is a tensor, or a list, tuple or
        dict with tensors.
        """
        if self._recorder.inputs is not None:
            self._recorder.inputs.batch(value)

    def grad_norm(self, value: torch.Tensor | float) -> None:
        """Records the global gradient norm that the program reports.  Call it once per step."""
        self._recorder.grad_norm(value)

    def meta(self, **values: bool | int | float | str | None) -> None:
        """Attaches values, such as `epoch=3`, to the API calls that are observed from now on.

        `epoch` sets the epoch of these calls. Any other NAME is recorded with them as "user.NAME",
        and also as the state of a variable, "program.NAME", whose changes are recorded. Does
        nothing in Runs that do not observe API calls.
        """
        self._recorder.meta(values)

    def before_clip(
        self, norm: torch.Tensor | float | None = None, max_norm: float | None = None
    ) -> None:
        """Announces that the program is about to clip its gradients with code of its own.

        Call it on every rank, between the last reduction of the gradients and the clipping, with
        the norm and the limit that the clipping uses.  torch's clip functions are detected without
        this call.
        """
        before_clip(norm, max_norm)


def _start_distributed(device: torch.device) -> None:
    """Initialises torch.distributed, unless the program has done so.

    A process that no launcher started is a world of size 1.
    """
    if dist.is_initialized():
        return
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    if is_launched():
        dist.init_process_group(backend)
    else:
        store = dist.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group(backend, store=store, rank=0, world_size=1)


def _annotations(given: AnnotationSource, rank: int) -> Annotations:
    """The annotations that a program passes, for the layouts of one rank."""
    if given is None:
        return Annotations.empty()
    if isinstance(given, Mapping):
        found = Annotations.of(given)
    elif isinstance(given, str | os.PathLike):
        found = Annotations.read(Path(given))
    else:
        raise AnnotationError(
            f"annotations is a {type(given).__name__}; it must be the path of a YAML file, or a "
            "mapping of the same form"
        )
    found.rank = rank
    return found
