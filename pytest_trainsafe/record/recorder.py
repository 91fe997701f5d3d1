"""The recorder of one rank: turns the actions of a program into the events of a Trace."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args

import torch

from pytest_trainsafe.annotations.declared import Annotations
from pytest_trainsafe.core.rungs.table import rung_named
from pytest_trainsafe.launch.collectives.collective import Collective
from pytest_trainsafe.launch.loading import defined_at
from pytest_trainsafe.record.adapter import adapters, renaming
from pytest_trainsafe.record.assignment import Assignment
from pytest_trainsafe.record.clock import Clock, ProgramError
from pytest_trainsafe.record.hooks.casts import CastWatch
from pytest_trainsafe.record.hooks.module_hooks import ModuleHooks
from pytest_trainsafe.record.instrument import Instrument, WatchedModel
from pytest_trainsafe.record.instruments import Instruments
from pytest_trainsafe.record.lines.origins import origins
from pytest_trainsafe.record.lines.sites import Sites
from pytest_trainsafe.record.model.initialize import Filled
from pytest_trainsafe.record.model.inputs import ModelInputs
from pytest_trainsafe.record.model.parts import (
    Model,
    named_modules,
    named_parameters,
    parts_of,
    unique_parameters,
)
from pytest_trainsafe.record.model.unwatched import Beside
from pytest_trainsafe.record.model_recorder import Level, ModelRecorder
from pytest_trainsafe.record.program_dtype.default import ProgramDefault
from pytest_trainsafe.record.program_dtype.draws import Draws
from pytest_trainsafe.record.training.cleared import ZeroGradCalls
from pytest_trainsafe.record.training.clipping import Clip
from pytest_trainsafe.record.training.collectives import CollectiveRecorder
from pytest_trainsafe.record.training.conditions import Modes
from pytest_trainsafe.record.training.left import Left
from pytest_trainsafe.trace.writer import RankWriter

_Kind = TypeVar("_Kind", bound=Instrument)


class Recorder:
    """Records one rank's program; created by `record.program`, used through the Context."""

    def __init__(self, assignment: Assignment, writer: RankWriter) -> None:
        self.assignment = assignment
        self.spec = assignment.spec
        self.writer = writer
        self.clock = Clock()
        self.clock.steps_done = self.spec.first_step
        own = rung_named(self.spec.dtype).dtype
        self.default = ProgramDefault(own)
        self.draws = Draws(self.default)
        self.beside = Beside(self.spec, writer)
        self.left = Left(self.spec, self.clock, writer)
        self.casts = CastWatch(own) if self.spec.watch_casts else None
        self.sites = Sites(writer)
        self.modes = Modes(self.sites)
        self.zeroed = ZeroGradCalls(self.clock, writer)
        self.hooks = ModuleHooks()
        self.origins = origins(self.spec, writer)
        self.inputs = ModelInputs(self.spec, self.clock, writer, self.sites, self.origins)
        self._collectives = CollectiveRecorder(self.clock, writer, callers=bool(self.spec.rewrite))
        #: Records the model from `ctx.watch` on.
        self._model: ModelRecorder | None = None
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
        if level not in get_args(Level):
            raise ProgramError(
                f"ctx.watch was given level={level!r}; pass 'microbatch' if the program marks its "
                "micro-batches, or 'step' if only whole steps can be compared"
            )
        if self._model is not None:
            raise ProgramError(
                "ctx.watch was called twice; call it once, before the first step, with one model, "
                "or with a list of its parts if a rank holds several"
            )
        self.instruments.call("before_watch", model, optimizer)
        watched = self._watched(model, optimizer, annotations)
        self.beside.watch(watched.parts, watched.parameters)
        self.zeroed.watch(watched.parameters)
        recorder = ModelRecorder(self, watched, level)
        recorder.write_initial(filled or {})
        self._model = recorder
        if self.casts is not None and recorder.in_own_dtype:
            self.casts.forget()

    def _watched(self, model: Model, optimizer: Any, annotations: Annotations) -> WatchedModel:
        """What the program passed to `ctx.watch`, under the names of the whole model."""
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
        names = {module: rename(name) for module, name in named_modules(parts).items()}
        if engine is not None:
            annotations = annotations.over(engine.annotations(names))
        return WatchedModel(parts, names, parameters, optimizer, annotations, engine)

    def _model_for(self, call: str) -> ModelRecorder:
        """The recorder of the watched model, which the program's `call` needs."""
        if self._model is None:
            raise ProgramError(
                f"{call} before ctx.watch was called; call ctx.watch(model, optimizer) before the "
                "first step"
            )
        return self._model

    def step(self) -> Iterator[int]:
        """Implements `ctx.step()`."""
        yield from self._model_for("ctx.step was entered").step()

    def microbatch(self, index: int) -> Iterator[int]:
        """Implements `ctx.microbatch(index)`."""
        yield from self._model_for("ctx.microbatch was entered").microbatch(index)

    def loss(self, value: torch.Tensor | float, microbatch: int | None) -> None:
        """Writes the loss of a micro-batch (by default the current one) or of the whole step."""
        self._model_for("ctx.loss was called").loss(value, microbatch)

    def grad_norm(self, value: torch.Tensor | float) -> None:
        """Writes the gradient norm of the current step."""
        self._model_for("ctx.grad_norm was called").grad_norm(value)

    def save(self, _own: Path | None) -> Iterator[Path | None]:
        """Implements `ctx.save`; a Run of a test never saves into the program's own folder."""
        yield from self.instruments.folder("saving")

    def load(self, _own: Path | None) -> Iterator[Path | None]:
        """Implements `ctx.load`; a Run of a test never loads from the program's own folder."""
        yield from self.instruments.folder("loading")

    def on_collective(self, call: Collective) -> None:
        """Records the collective `call`, which the program is about to make."""
        self._collectives.on_collective(call)
        if self._model is not None:
            self._model.on_collective(call)

    def meta(self, values: Mapping[str, object]) -> None:
        """Implements `ctx.meta`: attaches values to the API calls that are observed from now on."""
        if values.keys() & {"step", "microbatch"}:
            text = "mark steps with ctx.step, and micro-batches with ctx.microbatch"
            raise ProgramError(f"ctx.meta does not take step or microbatch; {text}")
        self.instruments.call("meta", values)

    def before_clip(self, clip: Clip) -> None:
        """Takes snapshots of the gradients, which the program is about to clip."""
        if self._model is not None:
            self._model.before_clip(clip)
        self.instruments.call("before_clip", clip)

    def finish(self) -> None:
        """Records what the program left after its last step.

        Raises ProgramError if it took no step, because there is then nothing to compare.
        """
        if self.clock.steps_done == self.spec.first_step:
            raise ProgramError(
                f"{self.spec.script or self.spec.program} never called ctx.step, so nothing was "
                "recorded; wrap each optimizer step in `with ctx.step():` and each forward and "
                "backward in `with ctx.microbatch(index):`",
                defined_at(self.assignment.program),
            )
        assert self._model is not None
        self.instruments.call("finish")
        self._model.finish()
