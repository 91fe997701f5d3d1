"""The recorder of one rank: turns the actions of a program into the events of a Trace."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch

from pytest_trainsafe.annotations.declared import Annotations
from pytest_trainsafe.core.layout import Layout, Partial
from pytest_trainsafe.core.rungs.table import rung_named
from pytest_trainsafe.core.tensor_id import INITIAL, TensorId
from pytest_trainsafe.launch.collectives.collective import Collective
from pytest_trainsafe.record.adapter import Watched, adapters, renaming
from pytest_trainsafe.record.assignment import Assignment
from pytest_trainsafe.record.clock import Clock, ProgramError
from pytest_trainsafe.record.hooks.activations import ActivationRecorder
from pytest_trainsafe.record.hooks.buffers import BufferRecorder, buffer_names
from pytest_trainsafe.record.hooks.module_hooks import ModuleHooks
from pytest_trainsafe.record.instrument import Instrument, WatchedModel
from pytest_trainsafe.record.instruments import Instruments
from pytest_trainsafe.record.lines.origins import origins
from pytest_trainsafe.record.lines.sites import Sites
from pytest_trainsafe.record.lines.source import described
from pytest_trainsafe.record.model.initialize import (
    Filled,
    require_filled_as_watched,
    write_overwritten,
)
from pytest_trainsafe.record.model.inputs import ModelInputs
from pytest_trainsafe.record.model.parameter_layout import contradictions
from pytest_trainsafe.record.model.parts import (
    Model,
    named_modules,
    named_parameters,
    parts_of,
    unique_parameters,
    unwrapped,
)
from pytest_trainsafe.record.model.unwatched import Beside
from pytest_trainsafe.record.program_dtype.default import ProgramDefault
from pytest_trainsafe.record.program_dtype.draws import Draws
from pytest_trainsafe.record.tensors import local_values, own_layout, rng_hash
from pytest_trainsafe.record.training.clipping import Clip
from pytest_trainsafe.record.training.collectives import CollectiveRecorder
from pytest_trainsafe.record.training.conditions import Conditions, Modes
from pytest_trainsafe.record.training.left import Left
from pytest_trainsafe.record.training.parameters import ParameterRecorder
from pytest_trainsafe.record.training.reductions import Reductions
from pytest_trainsafe.record.training.unheld import UnheldChanges
from pytest_trainsafe.record.training.written import Writes
from pytest_trainsafe.trace.schema import NoteEvent, StepEvent
from pytest_trainsafe.trace.writer import RankWriter

#: What a program marks: micro-batches and steps, or whole steps only.
Level = Literal["microbatch", "step"]
LEVELS: tuple[Level, ...] = ("microbatch", "step")

_Reported = Literal["loss", "grad_norm"]

_Kind = TypeVar("_Kind", bound=Instrument)


class Recorder:
    """Records one rank's program; created by `record.program`, used through the Context."""

    def __init__(self, assignment: Assignment, writer: RankWriter) -> None:
        self.assignment = assignment
        self.spec = assignment.spec
        self.writer = writer
        self.clock = Clock()
        self.clock.steps_done = self.spec.first_step
        self.default = ProgramDefault(rung_named(self.spec.dtype).dtype)
        self.draws = Draws(self.default)
        self.annotations = Annotations.empty()
        self.activations: ActivationRecorder | None = None
        self.parameters: ParameterRecorder | None = None
        self.beside = Beside(self.spec, writer)
        self.left = Left(self.spec, writer)
        self.buffers: BufferRecorder | None = None
        self.reductions: Reductions | None = None
        self.collectives = CollectiveRecorder(self.clock, writer, callers=bool(self.spec.rewrite))
        #: Called when a model in the Run's dtype is watched, to forget the casts before it.
        self.initialised: list[Callable[[], None]] = []
        self.written: Writes | None = None
        self.conditions: Conditions | None = None
        self.sites = Sites(writer)
        self.modes = Modes(self.sites)
        self.hooks = ModuleHooks()
        self.level: Level = "microbatch"
        self._compiled: set[str] = set()
        self._cuts = ""
        self._reported: set[TensorId] = set()
        self.origins = origins(self.spec, writer)
        self.inputs = ModelInputs(self.spec, self.clock, writer, self.sites, self.origins)
        self.instruments = Instruments()
        self.instruments.make(self)

    def instrument(self, kind: type[_Kind]) -> _Kind:
        """The instrument of a class, for those that come after it."""
        return self.instruments.get(kind)

    def watch(
        self,
        model: Model,
        optimizer: Any,
        annotations: Annotations,
        filled: Mapping[int, Filled] | None = None,
        level: Level = "microbatch",
    ) -> None:
        """Installs all hooks, and writes the model's modules and initial values.

        `filled` has the layouts that ctx.initialize assumed.  At `level` "step" no output of a
        module is recorded, and no micro-batch can be entered.  Raises ProgramError for an unknown
        level, a second call, a model on the meta device, and layouts that differ from `filled`.
        """
        if level not in LEVELS:
            raise ProgramError(
                f"ctx.watch was given level={level!r}; pass 'microbatch' if the program marks its "
                "micro-batches, or 'step' if only whole steps can be compared"
            )
        if self.parameters is not None:
            raise ProgramError(
                "ctx.watch was called twice; call it once, before the first step, with one model, "
                "or with a list of its parts if a rank holds several"
            )
        self.instruments.call("before_watch", model, optimizer)
        engine = next(filter(None, (adapter.engine(model) for adapter in adapters())), None)
        if engine is not None:
            optimizer = engine.optimizer if optimizer is None else optimizer
            model = engine.module
        parts = parts_of(model)
        rename = renaming(parts, self.spec.point, self.spec.point.coordinates(self.writer.rank))
        parameters = unique_parameters((rename(n), p) for n, p in named_parameters(parts))
        unmade = [name for name, parameter in parameters.items() if parameter.is_meta]
        if unmade:
            raise ProgramError(
                f"ctx.watch was given a model on the meta device ({unmade[0]} has no values); "
                "call model.to_empty(device=ctx.device) and ctx.initialize(model) first"
            )
        self.beside.watch(parts, parameters)
        names = {module: rename(name) for module, name in named_modules(parts).items()}
        all_names = names
        if engine is not None:
            annotations = annotations.over(engine.annotations(names))
            self.writer.add(NoteEvent("reduces_in", engine.reduces_in()))
        self.annotations = annotations
        if engine is None:
            watched = Watched(parts, self.spec.point, annotations, self.writer, self.hooks)
            for adapter in adapters():
                adapter.find_wrappers(watched)
        self._cuts = annotations.cuts_batches()
        self.level = level
        if level == "step":
            self.writer.add(NoteEvent("level", "step"))
        for module, name in names.items():
            self.writer.add(described(unwrapped(module), name))
        self.sites.write_places(names)
        for pattern in annotations.unmatched(parameters, names.values(), buffer_names(names)):
            self.writer.add(NoteEvent("unmatched_annotation", pattern))
        for pattern in self.spec.modules:
            if not any(fnmatchcase(name, pattern) for name in names.values()):
                self.writer.add(NoteEvent("unmatched_pattern", pattern))
        self.writer.add(annotations.fact())
        for text in contradictions(parameters, self.spec.point, annotations):
            self.writer.add(NoteEvent("unused_annotation", text))
        watched_model = WatchedModel(parts, all_names, parameters, optimizer, annotations)
        changes = self.instruments.changes(watched_model)
        # What follows writes would disable torch.compile.
        if self.spec.rewrite and not self.spec.point.get("compile", False):
            unheld = UnheldChanges(self.clock, self.writer, optimizer, parameters, self._stepped)
            self.written = Writes(self.clock, self.sites, parameters.values(), unheld, self.origins)
        self.activations = ActivationRecorder(
            self.assignment,
            self.clock,
            self.writer,
            annotations,
            changes,
            self.sites,
            self.hooks,
        )
        routed = tuple(name for adapter in adapters() for name in adapter.local_modules(parts))
        for name in names.values():
            if name.startswith(routed):
                self.writer.add(NoteEvent("local", f"activation {name}"))
        names = {m: n for m, n in names.items() if not n.startswith(routed)}
        self.activations.perturb(names)
        if level == "microbatch":
            self.activations.attach(names)
        if self.spec.rewrite:
            self.conditions = Conditions(
                self.clock, self.writer, self.sites, self.modes, parameters.values(), self.written
            )
            self.conditions.attach(names, self.hooks)
        if engine is not None:
            engine.attach()
        for number, (name, part) in enumerate(parts):
            self.hooks.before(part, name, self.inputs.on_input(part, f"{number} {name}", level))
            self.hooks.after(part, name, self.inputs.on_return())
        parameter_adapter = (
            adapter.parameter_adapter(optimizer, self.spec.point) for adapter in adapters()
        )
        self.parameters = ParameterRecorder(
            self.spec,
            self.clock,
            self.writer,
            annotations,
            parameters,
            optimizer,
            parameter_adapter=next(filter(None, parameter_adapter), None),
            engine=engine,
            sites=self.sites,
            # An engine may clip or copy gradients after its step begins.
            replacer=changes.gradients if engine is None else None,
        )
        if engine is None:  # an engine may split the parameters after ctx.initialize
            layouts = self.parameters.layouts
            require_filled_as_watched(filled or {}, parameters, layouts, self.spec.point)
        write_overwritten(filled or {}, parameters, self.writer)
        if engine is not None:
            self.activations.unscaled = self.parameters.unscaled = engine.unscaled
        self.parameters.attach()
        self.parameters.attach_to_unsharded(names)
        self.parameters.initial()
        self.left.watch(all_names, parameters, optimizer)
        if self.conditions is not None:
            self.conditions.remember()
        self.buffers = BufferRecorder(self.spec, self.clock, self.writer, annotations, names)
        self.buffers.attach()
        self.buffers.write_all(INITIAL)
        self.reductions = Reductions(self.clock, self.writer, self.spec.point, parameters.values())
        self.instruments.call("watch", watched_model)
        dtype = rung_named(self.spec.dtype).dtype
        # Otherwise the model computes in a narrower dtype, and may never be cast again.
        if all(p.dtype is dtype for p in parameters.values() if p.is_floating_point()):
            for callback in self.initialised:
                callback()

    def step(self) -> Iterator[int]:
        """Implements `ctx.step()`.  A step that an exception ends leaves no StepEvent."""
        if self.parameters is None or self.activations is None or self.buffers is None:
            raise ProgramError(
                "ctx.step was entered before ctx.watch was called; call ctx.watch(model, "
                "optimizer) before the first step"
            )
        self.sites.write_constructed()
        self.instruments.call("before_step")
        if 0 < self.clock.steps_done == self.spec.first_step:  # the values of the checkpoint
            self.parameters.write_values(self.clock.steps_done - 1)
            self.buffers.write_all(self.clock.steps_done - 1)
        rng, began = rng_hash(), time.perf_counter()
        number = self.clock.start_step()
        try:
            self.hooks.surround()
            self._reported.clear()
            self.inputs.start_step()
            self.parameters.start_step()
            with (
                self.written or contextlib.nullcontext(),
                self.instruments.within("in_step", number),
            ):
                yield number
            self._write_gradients()
            stepped = self.parameters.finish_step()
            if self.conditions is not None:
                self.conditions.remember()
            self.buffers.write_all(number)
            self._note_compiled()
            event = StepEvent(
                step=number,
                microbatches=self.clock.microbatches_done,
                rng_before=rng,
                rng_after=rng_hash(),
                optimizer_stepped=stepped,
                seconds=time.perf_counter() - began,
            )
            self.writer.add(event)
            self.beside.after_step(number)
            self.writer.flush()
        finally:
            self.activations.end_step()
            self.parameters.end_step()
            self.buffers.end_step()
            self.clock.end_step()
        self.instruments.call_backwards("after_step")

    def save(self, _own: Path | None) -> Iterator[Path | None]:
        """Implements `ctx.save`; a Run of a test never saves into the program's own folder."""
        yield from self.instruments.folder("saving")

    def load(self, _own: Path | None) -> Iterator[Path | None]:
        """Implements `ctx.load`; a Run of a test never loads from the program's own folder."""
        yield from self.instruments.folder("loading")

    def microbatch(self, index: int) -> Iterator[int]:
        """Implements `ctx.microbatch(index)`."""
        if self.level == "step":
            raise ProgramError(
                f"ctx.microbatch({index}) was entered in a program whose ctx.watch has "
                "level='step', which compares whole steps only; remove ctx.microbatch or "
                "level='step'"
            )
        if self._cuts and not self.clock.split and self.spec.point.size("dp") > 1:
            raise ProgramError(
                f"the annotation {self._cuts} has a dp_dim, so every dp rank should compute "
                "a slice of each micro-batch, but the program does not declare that; call "
                "ctx.microbatches(total, order='split') before the micro-batches, or remove dp_dim"
            )
        self.clock.start_microbatch(index)
        assert self.parameters is not None
        assert self.activations is not None
        self.inputs.start_microbatch()
        try:
            with self.instruments.within("in_microbatch", index):
                yield index
        except BaseException:
            self.activations.drop(index)
            self.parameters.drop(index)
            self.clock.end_microbatch()
            raise
        if self.clock.end_microbatch():
            self.activations.write(index)
            self.parameters.write(index)

    def _write_gradients(self) -> None:
        """Writes the gradients that are still held at the end of a step.

        They belong to micro-batches that were entered twice, or whose backward ran after their end.
        """
        assert self.parameters is not None
        assert self.activations is not None
        self.activations.write_all()
        self.parameters.write_all()

    def loss(self, value: torch.Tensor | float, microbatch: int | None) -> None:
        """Writes the loss of a micro-batch (by default the current one) or of the whole step."""
        if microbatch is None:
            microbatch = self.clock.microbatch
        whole = self.level == "step" and microbatch is None
        if (microbatch is None and not whole) or self.clock.step is None:
            raise ProgramError(
                "ctx.loss was called outside ctx.microbatch; call it once in each "
                "`with ctx.microbatch(index):`, or pass the index: ctx.loss(value, index). "
                "A loss of the whole step requires level='step' in ctx.watch"
            )
        self._report("loss", value, microbatch)

    def grad_norm(self, value: torch.Tensor | float) -> None:
        """Writes the gradient norm of the current step."""
        if self.clock.step is None:
            raise ProgramError(
                "ctx.grad_norm was called outside ctx.step; call it once in each `with ctx.step():`"
            )
        self._report("grad_norm", value, None)

    def on_collective(self, call: Collective) -> None:
        """Records the collective `call`, which the program is about to make."""
        self.collectives.on_collective(call)
        if self.reductions is not None:
            self.reductions.on_collective(call)

    def meta(self, values: Mapping[str, object]) -> None:
        """Implements `ctx.meta`: attaches values to the API calls that are observed from now on."""
        if values.keys() & {"step", "microbatch"}:
            text = "mark steps with ctx.step, and micro-batches with ctx.microbatch"
            raise ProgramError(f"ctx.meta does not take step or microbatch; {text}")
        self.instruments.call("meta", values)

    def before_clip(self, clip: Clip) -> None:
        """Takes snapshots of the gradients, which the program is about to clip."""
        if self.parameters is not None:
            self.parameters.before_clip(clip)
        self.instruments.call("before_clip", clip)

    def _report(self, kind: _Reported, value: torch.Tensor | float, microbatch: int | None) -> None:
        assert self.clock.step is not None
        where = TensorId(self.clock.step, microbatch, kind, "", kind)
        if where in self._reported:
            unit = "step" if microbatch is None else "micro-batch"
            raise ProgramError(
                f"ctx.{kind} was called twice in one {unit} ({where}); report one value for each "
                f"{unit}, and if there are several, their sum or mean"
            )
        self._reported.add(where)
        self.sites.note("loss" if kind == "loss" else "norm")
        if not self.spec.records(kind):
            return
        if not isinstance(value, torch.Tensor):
            try:
                value = torch.tensor(value, dtype=torch.float64)
            except (TypeError, ValueError, RuntimeError):
                raise ProgramError(
                    f"ctx.{kind} was given {value!r}; pass a tensor or a number"
                ) from None
        at = self.spec.point
        annotated = self.annotations.loss(at) if kind == "loss" else None
        default = self._mean_over_dp(microbatch) if kind == "loss" else ()
        layout, source = own_layout(value, at.sizes) or annotated or (default, "default")
        self.writer.add_tensor(where, local_values(value), layout, source)

    def _stepped(self) -> bool:
        """Whether an optimizer has stepped in the current step."""
        return self.parameters is not None and self.parameters.optimizer_stepped

    def _mean_over_dp(self, microbatch: int | None) -> Layout:
        """The default layout of a loss: a mean over dp, if each dp rank computes a part of it.

        This also holds if the ranks have already averaged it: the mean of equal values is equal.
        """
        shared = microbatch is None or self.clock.split
        return (Partial("dp", "avg"),) if shared and self.spec.point.size("dp") > 1 else ()

    def _note_compiled(self) -> None:
        """Notes the modules that run inside compiled regions, each once."""
        for name in self.hooks.inside:
            if name not in self._compiled:
                self._compiled.add(name)
                self.writer.add(NoteEvent("compiled", name))
