"""The recorder of one rank: turns what a program does into the events of a Trace."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any, Literal

import torch
from torch import nn

from pytest_trainsafe.align.annotations import Annotations
from pytest_trainsafe.align.resolve import contradictions
from pytest_trainsafe.launch.ledger import listen
from pytest_trainsafe.record.activations import ActivationRecorder
from pytest_trainsafe.record.clock import Clock, ProgramError
from pytest_trainsafe.record.deepspeed import (
    engine_annotations,
    holdings_of,
    is_engine,
    separate_outputs,
)
from pytest_trainsafe.record.deepspeed_experts import inside_layers, renumbering
from pytest_trainsafe.record.deepspeed_scale import LossScale
from pytest_trainsafe.record.initialize import Filled, require_filled_as_watched
from pytest_trainsafe.record.outputs import tensors_in
from pytest_trainsafe.record.parameters import ParameterRecorder, unique_parameters
from pytest_trainsafe.record.parts import Model, named_modules, named_parameters, parts_of
from pytest_trainsafe.record.perturb import Noise
from pytest_trainsafe.record.perturb_operations import OperationNoise
from pytest_trainsafe.record.reductions import Reductions
from pytest_trainsafe.record.rewrite import Rewriter
from pytest_trainsafe.record.source import source_of
from pytest_trainsafe.record.spec import RunSpec
from pytest_trainsafe.record.tensors import local_values, own_layout, rng_hash, tensor_hash
from pytest_trainsafe.trace.schema import (
    InputEvent,
    ModuleEvent,
    NoteEvent,
    StepEvent,
    TensorId,
)
from pytest_trainsafe.trace.writer import RankWriter


class Recorder:
    """Owns one rank's clock and writer; made by `record.program`, used through the Context."""

    def __init__(self, spec: RunSpec, writer: RankWriter) -> None:
        self.spec = spec
        self.writer = writer
        self.clock = Clock()
        self.annotations = Annotations.empty()
        self.activations: ActivationRecorder | None = None
        self.parameters: ParameterRecorder | None = None
        self.noisy: OperationNoise | None = None
        self._reported: set[TensorId] = set()
        self._fed = ""

    def watch(
        self,
        model: Model,
        optimizer: Any,
        annotations: Annotations,
        filled: Mapping[int, Filled] | None = None,
    ) -> None:
        """Install every hook and write down the model's modules.

        `filled` says what ctx.initialize made of parameters, to be told where it knew less.
        """
        if self.parameters is not None:
            raise ProgramError(
                "ctx.watch was called twice; it takes one model, before the steps (a list of its "
                "parts where a rank holds several)"
            )
        engine: Any = model if is_engine(model) else None
        if engine is not None:
            optimizer = engine.optimizer if optimizer is None else optimizer
            model = engine.module
        parts = parts_of(model)
        rename = renumbering(parts, self.spec.at, self.spec.at.coordinates(self.writer.rank))
        parameters = unique_parameters((rename(n), p) for n, p in named_parameters(parts))
        unmade = [name for name, parameter in parameters.items() if parameter.is_meta]
        if unmade:
            raise ProgramError(
                f"ctx.watch was given a model on the meta device ({unmade[0]} has no values); "
                "call model.to_empty(device=ctx.device) and ctx.initialize(model) before it"
            )
        names = {module: rename(name) for module, name in named_modules(parts).items()}
        if engine is not None:
            annotations = annotations.over(engine_annotations(names))
        self.annotations = annotations
        for module, name in names.items():
            self.writer.add(_describe(module, name))
        for pattern in annotations.unmatched(parameters, names.values()):
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
            rewriter = Rewriter(self.spec, where, self.clock, self.writer, annotations, noise)
        self.activations = ActivationRecorder(
            self.spec, self.clock, self.writer, annotations, noise, rewriter
        )
        routed = inside_layers(parts)
        for name in names.values():
            if name.startswith(routed):
                self.writer.add(NoteEvent("local", f"activation {name}"))
        self.activations.attach({m: n for m, n in names.items() if not n.startswith(routed)})
        if engine is not None:
            separate_outputs(engine)
        for number, (name, part) in enumerate(parts):
            hook = self._on_input(part, f"{number} {name}")
            part.register_forward_pre_hook(hook, with_kwargs=True)
        self.parameters = ParameterRecorder(
            self.spec,
            self.clock,
            self.writer,
            annotations,
            parameters,
            optimizer,
            holdings=holdings_of(optimizer, self.spec.at),
            engine=engine,
        )
        if engine is None:  # one that cuts parameters itself says so only now
            layouts = self.parameters.layouts
            require_filled_as_watched(filled or {}, parameters, layouts, self.spec.at)
        if engine is not None:
            self.activations.unscaled = self.parameters.unscaled = LossScale(engine).undone
        self.parameters.attach()
        self.parameters.initial()
        reductions = Reductions(self.clock, self.writer, self.spec.at, parameters.values())
        listen(reductions.heard)

    def step(self) -> Iterator[int]:
        """The body of `ctx.step()`.  A step that an exception ends leaves no StepEvent."""
        if self.parameters is None or self.activations is None:
            raise ProgramError(
                "ctx.step came before ctx.watch; call ctx.watch(model, optimizer) before the steps"
            )
        rng, began = rng_hash(), time.perf_counter()
        number = self.clock.start_step()
        try:
            self._reported.clear()
            self.parameters.start_step()
            with self.noisy or contextlib.nullcontext():
                yield number
            self._write_gradients()
            stepped = self.parameters.finish_step()
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
            self.clock.end_step()

    def microbatch(self, index: int) -> Iterator[int]:
        """The body of `ctx.microbatch(index)`."""
        self.clock.start_microbatch(index)
        assert self.parameters is not None
        assert self.activations is not None
        self._fed = ""
        try:
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
        """Write the gradients of micro-batches that were entered again, or had them elsewhere."""
        assert self.parameters is not None
        assert self.activations is not None
        self.activations.write_all()
        self.parameters.write_all()

    def loss(self, value: torch.Tensor | float, microbatch: int | None) -> None:
        """Write the loss of a micro-batch, by default of the current one."""
        if microbatch is None:
            microbatch = self.clock.microbatch
        if microbatch is None or self.clock.step is None:
            raise ProgramError(
                "ctx.loss was called outside ctx.microbatch; call it once in each "
                "`with ctx.microbatch(index):`, or say of which it is: ctx.loss(value, index)"
            )
        self._report("loss", value, microbatch)

    def grad_norm(self, value: torch.Tensor | float) -> None:
        """Write the gradient norm of the current step."""
        if self.clock.step is None:
            raise ProgramError(
                "ctx.grad_norm was called outside ctx.step; call it once in each `with ctx.step():`"
            )
        self._report("grad_norm", value, None)

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
        layout, source = own_layout(value, at.sizes) or annotated or ((), "default")
        self.writer.add_tensor(where, local_values(value), layout, source)

    def _on_input(self, part: nn.Module, key: str) -> Any:
        def hook(module: nn.Module, args: Any, kwargs: Any) -> None:
            step, microbatch = self.clock.step, self.clock.open
            # Neither a copy of the model nor the recomputation of all of it has inputs of its own.
            if module is not part or step is None or microbatch is None or _in_backward():
                return
            self.clock.forward(key)
            # What a part hands to the next is no input of the model.
            self._fed = self._fed or key
            if key != self._fed:
                return
            hashes = tuple(tensor_hash(tensor) for _, tensor in tensors_in([args, kwargs]))
            self.writer.add(InputEvent(step, microbatch, hashes))

        return torch.compiler.disable(hook)  # type: ignore[no-untyped-call]


def _in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1


def _describe(module: nn.Module, name: str) -> ModuleEvent:
    cls: Any = type(module)
    parameters = tuple(name for name, _ in module.named_parameters(recurse=False))
    return ModuleEvent(name, cls.__qualname__, source_of(cls), parameters)
