"""The recorder of one rank: turns what a program does into the events of a Trace."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any, Literal

import torch
from torch import nn

from pytest_trainsafe.annotations.declared import Annotations
from pytest_trainsafe.core.layout import Layout, Partial
from pytest_trainsafe.core.tensor_id import INITIAL, TensorId
from pytest_trainsafe.launch.collectives.ledger import listen
from pytest_trainsafe.record.adapter import Watched, adapters, renaming
from pytest_trainsafe.record.clock import Clock, ProgramError
from pytest_trainsafe.record.hooks.activations import ActivationRecorder
from pytest_trainsafe.record.hooks.buffers import BufferRecorder, buffer_names
from pytest_trainsafe.record.hooks.compiled import ModuleHooks
from pytest_trainsafe.record.hooks.outputs import tensors_in
from pytest_trainsafe.record.hooks.sites import Sites
from pytest_trainsafe.record.hooks.source import described
from pytest_trainsafe.record.inject.perturb import Noise
from pytest_trainsafe.record.inject.perturb_operations import OperationNoise
from pytest_trainsafe.record.inject.rewrite import Rewriter
from pytest_trainsafe.record.layouts.resolve import contradictions
from pytest_trainsafe.record.model.initialize import Filled, require_filled_as_watched
from pytest_trainsafe.record.model.parts import (
    Model,
    named_modules,
    named_parameters,
    parts_of,
    unwrapped,
)
from pytest_trainsafe.record.rng.ledger import NoLedger, RngLedger
from pytest_trainsafe.record.spec import RunSpec
from pytest_trainsafe.record.training.clipping import Clip
from pytest_trainsafe.record.training.conditions import Conditions, Modes
from pytest_trainsafe.record.training.parameters import ParameterRecorder, unique_parameters
from pytest_trainsafe.record.training.reductions import Reductions
from pytest_trainsafe.record.training.tensors import (
    local_values,
    own_layout,
    rng_hash,
    tensor_hash,
)
from pytest_trainsafe.record.training.written import Writes
from pytest_trainsafe.trace.schema import InputEvent, NoteEvent, StepEvent
from pytest_trainsafe.trace.sites import Site
from pytest_trainsafe.trace.writer import RankWriter

#: What a program marks: the micro-batches of its steps, or whole steps only.
Level = Literal["microbatch", "step"]
LEVELS: tuple[Level, ...] = ("microbatch", "step")


class Recorder:
    """Owns one rank's clock and writer; made by `record.program`, used through the Context."""

    def __init__(self, spec: RunSpec, writer: RankWriter) -> None:
        self.spec = spec
        self.writer = writer
        self.clock = Clock()
        self.rng = RngLedger(writer, self.clock) if spec.rng else NoLedger(writer)
        self.annotations = Annotations.empty()
        self.activations: ActivationRecorder | None = None
        self.parameters: ParameterRecorder | None = None
        self.noisy: OperationNoise | None = None
        self.buffers: BufferRecorder | None = None
        #: Called when a model in the Run's dtype is watched: what was cast before only made it.
        self.initialised: list[Callable[[], None]] = []
        self.written: Writes | None = None
        self.conditions: Conditions | None = None
        self.sites = Sites(writer)
        self.modes = Modes(self.sites)
        self.hooks = ModuleHooks()
        self.level: Level = "microbatch"
        self._compiled: set[str] = set()
        self._calls = 0
        self._cuts = ""
        self._reported: set[TensorId] = set()
        self._fed = ""
        self._given: Counter[tuple[int, str]] = Counter()
        self._entered: tuple[str, tuple[str, ...], dict[object, object], Site | None] | None = None

    def watch(
        self,
        model: Model,
        optimizer: Any,
        annotations: Annotations,
        filled: Mapping[int, Filled] | None = None,
        level: Level = "microbatch",
    ) -> None:
        """Install every hook and write down the model's modules.

        `filled` says what ctx.initialize made of parameters, to be told where it knew less.
        At the `level` "step" no module is recorded, and no micro-batch can be entered.
        """
        if level not in LEVELS:
            raise ProgramError(
                f"ctx.watch was given level={level!r}; it takes 'microbatch', where the program "
                "marks its micro-batches, or 'step', where only whole steps can be compared"
            )
        if self.parameters is not None:
            raise ProgramError(
                "ctx.watch was called twice; it takes one model, before the steps (a list of its "
                "parts where a rank holds several)"
            )
        engine = next(filter(None, (adapter.engine(model) for adapter in adapters())), None)
        if engine is not None:
            optimizer = engine.optimizer if optimizer is None else optimizer
            model = engine.module
        parts = parts_of(model)
        rename = renaming(parts, self.spec.at, self.spec.at.coordinates(self.writer.rank))
        parameters = unique_parameters((rename(n), p) for n, p in named_parameters(parts))
        unmade = [name for name, parameter in parameters.items() if parameter.is_meta]
        if unmade:
            raise ProgramError(
                f"ctx.watch was given a model on the meta device ({unmade[0]} has no values); "
                "call model.to_empty(device=ctx.device) and ctx.initialize(model) before it"
            )
        names = {module: rename(name) for module, name in named_modules(parts).items()}
        all_names = names
        if engine is not None:
            annotations = annotations.over(engine.annotations(names))
            self.writer.add(NoteEvent("reduces_in", engine.reduces_in()))
        self.annotations = annotations
        if engine is None:
            watched = Watched(parts, self.spec.at, annotations, self.writer, self.hooks)
            for adapter in adapters():
                adapter.find_wrappers(watched)
        self._cuts = annotations.cuts_batches()
        self.level = level
        if level == "step":
            self.writer.add(NoteEvent("level", "step"))
        for module, name in names.items():
            self.writer.add(described(unwrapped(module), name))
        for pattern in annotations.unmatched(parameters, names.values(), buffer_names(names)):
            self.writer.add(NoteEvent("unmatched_annotation", pattern))
        for pattern in self.spec.modules:
            if not any(fnmatchcase(name, pattern) for name in names.values()):
                self.writer.add(NoteEvent("unmatched_pattern", pattern))
        self.writer.add(NoteEvent("annotations", annotations.told()))
        for text in contradictions(parameters, self.spec.at, annotations):
            self.writer.add(NoteEvent("unused_annotation", text))
        noise = (
            Noise(self.spec.perturbation, self.spec.noise_seed) if self.spec.perturbation else None
        )
        if noise is not None and self.spec.noisy_operations:
            self.noisy, noise = OperationNoise(noise), None
        rewriter = None
        if self.spec.rewrite:
            where = self.spec.at.coordinates(self.writer.rank)
            if not self.spec.at.get("compile", False):  # torch compiles nothing within such a mode
                self.written = Writes(self.clock, self.sites, parameters.values())
            rewriter = Rewriter(self.spec, where, self.clock, self.writer, annotations, noise)
        self.activations = ActivationRecorder(
            self.spec,
            self.clock,
            self.writer,
            annotations,
            noise,
            rewriter,
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
                self.clock,
                self.writer,
                self.sites,
                self.modes,
                parameters.values(),
                self.written,
            )
            self.conditions.attach(names, self.hooks)
        if engine is not None:
            engine.attach()
        for number, (name, part) in enumerate(parts):
            self.hooks.before(part, name, self._on_input(part, f"{number} {name}"))
            self.hooks.after(part, name, self._on_return())
        holdings = (adapter.holdings(optimizer, self.spec.at) for adapter in adapters())
        self.parameters = ParameterRecorder(
            self.spec,
            self.clock,
            self.writer,
            annotations,
            parameters,
            optimizer,
            holdings=next(filter(None, holdings), None),
            engine=engine,
            sites=self.sites,
        )
        if engine is None:  # one that cuts parameters itself says so only now
            layouts = self.parameters.layouts
            require_filled_as_watched(filled or {}, parameters, layouts, self.spec.at)
        if engine is not None:
            self.activations.unscaled = self.parameters.unscaled = engine.unscaled
        self.parameters.attach()
        self.parameters.attach_to_unsharded(names)
        self.parameters.initial()
        if self.conditions is not None:
            self.conditions.remember()
        self.buffers = BufferRecorder(self.spec, self.clock, self.writer, annotations, names)
        self.buffers.attach()
        self.buffers.write_all(INITIAL)
        reductions = Reductions(self.clock, self.writer, self.spec.at, parameters.values())
        listen(reductions.heard)
        self.rng.watch({unwrapped(m): n for m, n in all_names.items()}, [p for _, p in parts])
        dtype = getattr(torch, self.spec.dtype)
        # A model in a narrower dtype computes in that, and may never be cast again.
        if all(p.dtype is dtype for p in parameters.values() if p.is_floating_point()):
            for heard in self.initialised:
                heard()

    def step(self) -> Iterator[int]:
        """The body of `ctx.step()`.  A step that an exception ends leaves no StepEvent."""
        if self.parameters is None or self.activations is None or self.buffers is None:
            raise ProgramError(
                "ctx.step came before ctx.watch; call ctx.watch(model, optimizer) before the steps"
            )
        self.sites.write_constructed()
        self.rng.boundary()
        rng, began = rng_hash(), time.perf_counter()
        number = self.clock.start_step()
        try:
            self.hooks.surround()
            self._calls = 0
            self._reported.clear()
            self._given.clear()
            self._entered = None
            self.parameters.start_step()
            with self.noisy or self.written or contextlib.nullcontext():
                yield number
            self._write_gradients()
            stepped = self.parameters.finish_step()
            self.rng.boundary()
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
            self.writer.flush()
        finally:
            self.activations.end_step()
            self.parameters.end_step()
            self.buffers.end_step()
            self.clock.end_step()

    def microbatch(self, index: int) -> Iterator[int]:
        """The body of `ctx.microbatch(index)`."""
        if self.level == "step":
            raise ProgramError(
                f"ctx.microbatch({index}) was entered in a program whose ctx.watch has "
                "level='step', which compares whole steps only; remove one of the two"
            )
        if self._cuts and not self.clock.split and self.spec.at.size("dp") > 1:
            raise ProgramError(
                f"the annotation {self._cuts} has a dp_dim, which says that every dp rank computes "
                "a slice of each micro-batch, and the program does not; call "
                "ctx.microbatches(total, order='split') before the micro-batches, or remove dp_dim"
            )
        self.clock.start_microbatch(index)
        assert self.parameters is not None
        assert self.activations is not None
        self._fed = ""
        if self._entered is not None:  # by a forward that marks the micro-batch itself
            self._feed(*self._entered)
        try:
            yield index
        except BaseException:
            self.activations.drop(index)
            self.parameters.drop(index)
            self.clock.end_microbatch()
            raise
        self.rng.look()
        if self.clock.end_microbatch():
            self.activations.write(index)
            self.parameters.write(index)

    def _write_gradients(self) -> None:
        """Write the gradients of micro-batches that were entered again, or had them elsewhere."""
        assert self.parameters is not None
        assert self.activations is not None
        self.activations.write_all()
        self.parameters.write_all()

    def loss(self, value: torch.Tensor | float, microbatch: int | None) -> None:
        """Write the loss of a micro-batch, by default of the current one; or of the whole step."""
        if microbatch is None:
            microbatch = self.clock.microbatch
        whole = self.level == "step" and microbatch is None
        if (microbatch is None and not whole) or self.clock.step is None:
            raise ProgramError(
                "ctx.loss was called outside ctx.microbatch; call it once in each "
                "`with ctx.microbatch(index):`, or say of which it is: ctx.loss(value, index). "
                "A loss of the whole step is taken where ctx.watch has level='step'"
            )
        self._report("loss", value, microbatch)

    def grad_norm(self, value: torch.Tensor | float) -> None:
        """Write the gradient norm of the current step."""
        if self.clock.step is None:
            raise ProgramError(
                "ctx.grad_norm was called outside ctx.step; call it once in each `with ctx.step():`"
            )
        self._report("grad_norm", value, None)

    def before_clip(self, clip: Clip) -> None:
        """The program is about to clip its gradients."""
        if self.parameters is not None:
            self.parameters.before_clip(clip)

    def _report(
        self,
        kind: Literal["loss", "grad_norm"],
        value: torch.Tensor | float,
        microbatch: int | None,
    ) -> None:
        assert self.clock.step is not None
        where = TensorId(self.clock.step, microbatch, kind, "", kind)
        if where in self._reported:
            unit = "step" if microbatch is None else "micro-batch"
            raise ProgramError(
                f"ctx.{kind} was called twice in one {unit} ({where}); report one value for each, "
                "the sum or the mean where there are several"
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
                    f"ctx.{kind} was given {value!r}; it takes a tensor or a number"
                ) from None
        at = self.spec.at
        annotated = self.annotations.loss(at) if kind == "loss" else None
        default = self._mean_over_dp(microbatch) if kind == "loss" else ()
        layout, source = own_layout(value, at.sizes) or annotated or (default, "default")
        self.writer.add_tensor(where, local_values(value), layout, source)

    def _mean_over_dp(self, microbatch: int | None) -> Layout:
        """The layout of a loss that each dp rank reports of its part of what was computed.

        Also of one that is averaged already: the mean of equal values is that value.
        """
        shared = microbatch is None or self.clock.split
        return (Partial("dp", "avg"),) if shared and self.spec.at.size("dp") > 1 else ()

    def _note_compiled(self) -> None:
        """Note the modules that run inside compiled regions, each once."""
        for name in self.hooks.inside:
            if name not in self._compiled:
                self._compiled.add(name)
                self.writer.add(NoteEvent("compiled", name))

    def _on_input(self, part: nn.Module, key: str) -> Any:
        def hook(module: nn.Module, args: Any, kwargs: Any) -> None:
            # Neither a copy of the model nor the recomputation of all of it has inputs of its own.
            if module is not part or self.clock.step is None or _in_backward():
                return
            hashes = tuple(tensor_hash(tensor) for _, tensor in tensors_in([args, kwargs]))
            if self.level == "step":
                self._fed = self._fed or key
                if key == self._fed:
                    # The number is only a count: it says nothing of which data these are.
                    self.writer.add(InputEvent(self.clock.step, self._calls, hashes))
                    self._calls += 1
                self.sites.note("model", (self.clock.step, self._calls))
                return
            if self.clock.open is None:
                called = self.sites.here("model")
                self._entered = key, hashes, {**dict(enumerate(args)), **kwargs}, called
            else:
                self._feed(key, hashes, {**dict(enumerate(args)), **kwargs})

        return hook

    def _on_return(self) -> Any:
        def hook(*_: object) -> None:
            self._entered = None

        return hook

    def _feed(
        self,
        key: str,
        hashes: tuple[str, ...],
        given: dict[object, object],
        called: Site | None = None,
    ) -> None:
        """Write what a part was given in the open micro-batch, if it is the first part.

        `called` is the line that called it, where that is not the line that led here.
        """
        step, microbatch = self.clock.step, self.clock.open
        assert step is not None
        assert microbatch is not None
        self.clock.forward(key)
        self.sites.note("model", (step, microbatch), site=called)
        # What a part hands to the next is no input of the model.
        self._fed = self._fed or key
        if key != self._fed:
            return
        self.writer.add(InputEvent(step, microbatch, hashes))
        if self.spec.records("input"):
            self._write_inputs(step, microbatch, given)

    def _write_inputs(self, step: int, microbatch: int, given: dict[object, object]) -> None:
        """Write what the program gives its model: positions, then keywords.

        A later stage of a pipeline is given tokens or labels by the program, if any, and other
        values by the stage before it.
        """
        first = self.spec.at.coordinates(self.writer.rank)["pp"] == 0
        for place, tensor in tensors_in(given, "input"):
            if not first and (tensor.is_floating_point() or tensor.is_complex()):
                continue
            call = self._given[microbatch, place]
            self._given[microbatch, place] += 1
            where = TensorId(step, microbatch, "input", "", place, call)
            layout, source = own_layout(tensor, self.spec.at.sizes) or ((), "default")
            self.writer.add_tensor(where, local_values(tensor), layout, source)


def _in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1
