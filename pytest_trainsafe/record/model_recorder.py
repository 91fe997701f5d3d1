"""Records the model that a program passed to `ctx.watch`, from there to the end of the program."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Literal, Protocol

import torch
from torch import nn

from pytest_trainsafe.core.layout import Layout, Partial
from pytest_trainsafe.core.rungs.table import rung_named
from pytest_trainsafe.core.tensor_id import INITIAL, TensorId
from pytest_trainsafe.launch.collectives.collective import Collective
from pytest_trainsafe.record.adapter import Watched, adapters
from pytest_trainsafe.record.clock import ProgramError
from pytest_trainsafe.record.hooks.activations import ActivationRecorder
from pytest_trainsafe.record.hooks.buffers import BufferRecorder, buffer_names, named_buffers
from pytest_trainsafe.record.hooks.changes import Changes
from pytest_trainsafe.record.hooks.module_hooks import ModuleHooks
from pytest_trainsafe.record.instrument import Recording, WatchedModel
from pytest_trainsafe.record.instruments import Instruments
from pytest_trainsafe.record.lines.sites import Sites
from pytest_trainsafe.record.lines.source import described
from pytest_trainsafe.record.model.initialize import (
    Filled,
    require_filled_as_watched,
    write_overwritten,
)
from pytest_trainsafe.record.model.inputs import ModelInputs
from pytest_trainsafe.record.model.parameter_layout import contradictions
from pytest_trainsafe.record.model.parts import called_parts, unwrapped
from pytest_trainsafe.record.tensors import local_values, own_layout, rng_hash
from pytest_trainsafe.record.training.clipping import Clip
from pytest_trainsafe.record.training.conditions import Conditions, Modes
from pytest_trainsafe.record.training.left import Left
from pytest_trainsafe.record.training.parameters import ParameterRecorder
from pytest_trainsafe.record.training.reductions import Reductions
from pytest_trainsafe.record.training.unheld import UnheldChanges
from pytest_trainsafe.record.training.written import Writes
from pytest_trainsafe.trace.schema import NoteEvent, StepEvent

#: What a program marks: micro-batches and steps, or whole steps only.
Level = Literal["microbatch", "step"]

Reported = Literal["loss", "grad_norm"]


class ProgramRecording(Recording, Protocol):
    """What is recorded of a program from its start, which the model's recorder goes on with."""

    sites: Sites
    modes: Modes
    hooks: ModuleHooks
    inputs: ModelInputs
    left: Left
    instruments: Instruments


class ModelRecorder:
    """Records a model's values, and the steps and micro-batches in which they change.

    Notes what the model consists of and installs all hooks; `write_initial` completes `ctx.watch`.
    """

    def __init__(self, run: ProgramRecording, watched: WatchedModel, level: Level) -> None:
        self._run = run
        self._watched = watched
        self._level = level
        self._clock, self._writer, self._point = run.clock, run.writer, run.spec.point
        self._cuts = watched.annotations.cuts_batches()
        self._reported: set[TensorId] = set()
        self._compiled: set[str] = set()
        self._write_model()
        changes = run.instruments.changes(watched)
        names = self._recorded_modules()
        self._writes = self._write_lines()
        self._conditions = self._run_conditions()
        self._activations = ActivationRecorder(
            run.assignment,
            run.clock,
            run.writer,
            watched.annotations,
            changes,
            run.sites,
            run.hooks,
        )
        self._attach_to_modules(names)
        self._parameters = self._parameter_recorder(changes)
        self._attach_to_parameters()
        self._buffers = BufferRecorder(run.spec, run.clock, run.writer, watched.annotations, names)
        self._reductions = Reductions(
            run.clock, run.writer, self._point, watched.parameters.values()
        )

    def _write_model(self) -> None:
        """Writes the model's modules, and what its annotations and patterns do not match."""
        run, watched, names = self._run, self._watched, self._watched.names
        if watched.engine is not None:
            self._writer.add(NoteEvent("reduces_in", watched.engine.reduces_in()))
        else:
            model = Watched(
                watched.parts, self._point, watched.annotations, self._writer, run.hooks
            )
            for adapter in adapters():
                adapter.find_wrappers(model)
        if self._level == "step":
            self._writer.add(NoteEvent("level", "step"))
        for module, name in names.items():
            self._writer.add(described(unwrapped(module), name))
        run.sites.write_places(names)
        annotations, parameters = watched.annotations, watched.parameters
        for pattern in annotations.unmatched(parameters, names.values(), buffer_names(names)):
            self._writer.add(NoteEvent("unmatched_annotation", pattern))
        for pattern in run.spec.modules:
            if not any(fnmatchcase(name, pattern) for name in names.values()):
                self._writer.add(NoteEvent("unmatched_pattern", pattern))
        self._writer.add(annotations.fact())
        for text in contradictions(parameters, self._point, annotations):
            self._writer.add(NoteEvent("unused_annotation", text))

    def _recorded_modules(self) -> dict[nn.Module, str]:
        """The modules without those that each rank computes for itself, which are noted."""
        local = tuple(
            name for adapter in adapters() for name in adapter.local_modules(self._watched.parts)
        )
        for name in self._watched.names.values():
            if name.startswith(local):
                self._writer.add(NoteEvent("local", f"activation {name}"))
        return {m: n for m, n in self._watched.names.items() if not n.startswith(local)}

    def _write_lines(self) -> Writes | None:
        """Watches the lines that change gradients; it would disable torch.compile."""
        run, watched = self._run, self._watched
        if not run.spec.rewrite or self._point.get("compile", False):
            return None
        unheld = UnheldChanges(
            run.clock,
            run.writer,
            watched.optimizer,
            watched.parameters,
            functools.partial(named_buffers, watched.names),
            self._has_stepped,
        )
        return Writes(run.clock, run.sites, watched.parameters.values(), unheld, run.origins)

    def _run_conditions(self) -> Conditions | None:
        run, parameters = self._run, self._watched.parameters.values()
        if not run.spec.rewrite:
            return None
        return Conditions(run.clock, run.writer, run.sites, run.modes, parameters, self._writes)

    def _attach_to_modules(self, names: dict[nn.Module, str]) -> None:
        """Installs the hooks on modules: each sees what those before it changed."""
        hooks, inputs, engine = self._run.hooks, self._run.inputs, self._watched.engine
        self._activations.perturb(names)
        if self._level == "microbatch":
            self._activations.attach(names)
        if self._conditions is not None:
            self._conditions.attach(names, hooks)
        if engine is not None:
            self._activations.unscaled = engine.unscaled
            engine.attach()
        given = [part for _, part in self._watched.parts]
        for number, (name, part) in enumerate(called_parts(self._watched.parts)):
            key, whole = f"{number} {name}", any(part is each for each in given)
            hooks.before(part, name, inputs.on_input(part, key, self._level, whole=whole))
            hooks.after(part, name, inputs.on_return())

    def _parameter_recorder(self, changes: Changes) -> ParameterRecorder:
        run, watched = self._run, self._watched
        kept_by = (
            adapter.parameter_adapter(watched.optimizer, self._point) for adapter in adapters()
        )
        return ParameterRecorder(
            run.spec,
            run.clock,
            run.writer,
            watched.annotations,
            dict(watched.parameters),
            watched.optimizer,
            parameter_adapter=next(filter(None, kept_by), None),
            engine=watched.engine,
            sites=run.sites,
            # An engine may clip or copy gradients after its step begins.
            replacer=changes.gradients if watched.engine is None else None,
        )

    def _attach_to_parameters(self) -> None:
        if self._watched.engine is not None:
            self._parameters.unscaled = self._watched.engine.unscaled
        self._parameters.attach()
        # All modules: `fully_shard` may have been applied to a wrapper, whose name another has.
        parts = self._watched.parts
        self._parameters.attach_to_unsharded(each for _, part in parts for each in part.modules())

    def write_initial(self, filled: Mapping[int, Filled]) -> None:
        """Writes the values before the first step.

        `filled` has the layouts that ctx.initialize assumed; raises ProgramError if others hold.
        """
        watched = self._watched
        if watched.engine is None:  # an engine may split the parameters after ctx.initialize
            layouts = self._parameters.layouts
            require_filled_as_watched(filled, watched.parameters, layouts, self._point)
        write_overwritten(filled, watched.parameters, self._writer)
        self._parameters.initial()
        self._run.left.watch(watched.names, watched.parameters, watched.optimizer)
        self._remember()
        self._buffers.attach()
        self._buffers.write_all(INITIAL)
        self._run.instruments.call("watch", watched)

    @property
    def in_own_dtype(self) -> bool:
        """Whether all parameters have the Run's dtype; else the model may never be cast again."""
        dtype = rung_named(self._run.spec.dtype).dtype
        values = self._watched.parameters.values()
        return all(p.dtype is dtype for p in values if p.is_floating_point())

    def step(self) -> Iterator[int]:
        """Implements `ctx.step()`.  A step that an exception ends leaves no StepEvent."""
        run, clock = self._run, self._clock
        run.sites.write_constructed()
        run.instruments.call("before_step")
        if 0 < clock.steps_done == run.spec.first_step:  # the values of the checkpoint
            self._parameters.write_values(clock.steps_done - 1)
            self._buffers.write_all(clock.steps_done - 1)
        rng, began = rng_hash(), time.perf_counter()
        number = clock.start_step()
        try:
            run.hooks.surround()
            self._reported.clear()
            run.inputs.start_step()
            self._parameters.start_step()
            with (
                self._writes or contextlib.nullcontext(),
                run.instruments.within("in_step", number),
            ):
                yield number
            # Those of micro-batches that were entered twice, or whose backward ran after their end.
            self._activations.write_all()
            self._parameters.write_all()
            stepped = self._parameters.finish_step()
            self._remember()
            self._buffers.write_all(number)
            self._note_compiled()
            event = StepEvent(
                step=number,
                microbatches=clock.microbatches_done,
                rng_before=rng,
                rng_after=rng_hash(),
                optimizer_stepped=stepped,
                seconds=time.perf_counter() - began,
            )
            self._writer.add(event)
            run.beside.after_step(number)
            self._writer.flush()
        finally:
            self._activations.end_step()
            self._parameters.end_step()
            self._buffers.end_step()
            clock.end_step()
        run.instruments.call_backwards("after_step")

    def microbatch(self, index: int) -> Iterator[int]:
        """Implements `ctx.microbatch(index)`."""
        if self._level == "step":
            raise ProgramError(
                f"ctx.microbatch({index}) was entered in a program whose ctx.watch has "
                "level='step', which compares whole steps only; remove ctx.microbatch or "
                "level='step'"
            )
        if self._cuts and not self._clock.split and self._point.size("dp") > 1:
            raise ProgramError(
                f"the annotation {self._cuts} has a dp_dim, so every dp rank should compute "
                "a slice of each micro-batch, but the program does not declare that; call "
                "ctx.microbatches(total, order='split') before the micro-batches, or remove dp_dim"
            )
        self._clock.start_microbatch(index)
        self._run.inputs.start_microbatch()
        try:
            with self._run.instruments.within("in_microbatch", index):
                yield index
        except BaseException:
            self._activations.drop(index)
            self._parameters.drop(index)
            self._clock.end_microbatch()
            raise
        if self._clock.end_microbatch():
            self._activations.write(index)
            self._parameters.write(index)

    def loss(self, value: torch.Tensor | float, microbatch: int | None) -> None:
        """Writes the loss of a micro-batch (by default the current one) or of the whole step."""
        if microbatch is None:
            microbatch = self._clock.microbatch
        whole = self._level == "step" and microbatch is None
        if (microbatch is None and not whole) or self._clock.step is None:
            raise ProgramError(
                "ctx.loss was called outside ctx.microbatch; call it once in each "
                "`with ctx.microbatch(index):`, or pass the index: ctx.loss(value, index). "
                "A loss of the whole step requires level='step' in ctx.watch"
            )
        self._report("loss", value, microbatch)

    def grad_norm(self, value: torch.Tensor | float) -> None:
        """Writes the gradient norm of the current step."""
        if self._clock.step is None:
            raise ProgramError(
                "ctx.grad_norm was called outside ctx.step; call it once in each `with ctx.step():`"
            )
        self._parameters.norm_reported()
        self._report("grad_norm", value, None)

    def before_clip(self, clip: Clip) -> None:
        """Takes snapshots of the gradients, which the program is about to clip."""
        self._parameters.before_clip(clip)

    def on_collective(self, call: Collective) -> None:
        """Records that the collective `call`, which is about to run, reduces gradients."""
        self._reductions.on_collective(call)

    def finish(self) -> None:
        """Records what the program left after its last step."""
        self._run.left.finish(self._parameters.changed)
        self._parameters.finish()

    def _report(self, kind: Reported, value: torch.Tensor | float, microbatch: int | None) -> None:
        run, step = self._run, self._clock.step
        assert step is not None
        where = TensorId(step, microbatch, kind, "", kind)
        if where in self._reported:
            unit = "step" if microbatch is None else "micro-batch"
            raise ProgramError(
                f"ctx.{kind} was called twice in one {unit} ({where}); report one value for each "
                f"{unit}, and if there are several, their sum or mean"
            )
        self._reported.add(where)
        run.sites.note("loss" if kind == "loss" else "norm")
        if not run.spec.records(kind):
            return
        if not isinstance(value, torch.Tensor):
            try:
                value = torch.tensor(value, dtype=torch.float64)
            except (TypeError, ValueError, RuntimeError):
                raise ProgramError(
                    f"ctx.{kind} was given {value!r}; pass a tensor or a number"
                ) from None
        annotated = self._watched.annotations.loss(self._point) if kind == "loss" else None
        default = self._mean_over_dp(microbatch) if kind == "loss" else ()
        layout, source = own_layout(value, self._point.sizes) or annotated or (default, "default")
        self._writer.add_tensor(where, local_values(value), layout, source)

    def _mean_over_dp(self, microbatch: int | None) -> Layout:
        """The default layout of a loss: a mean over dp, if each dp rank computes a part of it.

        This also holds if the ranks have already averaged it: the mean of equal values is equal.
        """
        shared = microbatch is None or self._clock.split
        return (Partial("dp", "avg"),) if shared and self._point.size("dp") > 1 else ()

    def _has_stepped(self) -> bool:
        """Whether an optimizer has stepped in the current step."""
        return self._parameters.optimizer_stepped

    def _remember(self) -> None:
        if self._conditions is not None:
            self._conditions.remember()

    def _note_compiled(self) -> None:
        """Notes the modules that run inside compiled regions, each once."""
        for name in self._run.hooks.inside:
            if name not in self._compiled:
                self._compiled.add(name)
                self._writer.add(NoteEvent("compiled", name))
