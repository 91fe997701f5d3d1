"""The recorder of one rank: turns what a program does into the events of a Trace."""

from __future__ import annotations

import inspect
import time
from collections.abc import Iterator
from typing import Any

import torch
import xxhash
from torch import nn

from pytest_trainsafe.align.annotations import Annotations
from pytest_trainsafe.record.activations import ActivationRecorder
from pytest_trainsafe.record.clock import Clock
from pytest_trainsafe.record.names import canonical
from pytest_trainsafe.record.outputs import tensors_in
from pytest_trainsafe.record.parameters import ParameterRecorder, unique_parameters
from pytest_trainsafe.record.perturb import Noise
from pytest_trainsafe.record.spec import RunSpec
from pytest_trainsafe.trace.schema import (
    InputEvent,
    ModuleEvent,
    NoteEvent,
    StepEvent,
    TensorId,
)
from pytest_trainsafe.trace.writer import RankWriter, as_bytes


class RecordError(Exception):
    """A program marked time in a way that has no meaning; the message says how to mend it."""


class Recorder:
    """Owns one rank's clock and writer; made by `record.program`, used through the Context."""

    def __init__(self, spec: RunSpec, writer: RankWriter) -> None:
        self.spec = spec
        self.writer = writer
        self.clock = Clock()
        self.annotations = Annotations.empty()
        self.parameters: ParameterRecorder | None = None

    def watch(self, model: nn.Module, optimizer: Any, annotations: Annotations) -> None:
        """Install every hook and write down the model's modules."""
        if self.parameters is not None:
            raise RecordError("ctx.watch was called twice; it takes one model, before the steps")
        self.annotations = annotations
        names = _module_names(model)
        parameters = unique_parameters((canonical(n), p) for n, p in model.named_parameters())
        for module, name in names.items():
            self.writer.add(_describe(module, name))
        for pattern in annotations.unmatched(parameters, names.values()):
            self.writer.add(NoteEvent("unmatched_annotation", pattern))
        noise = (
            Noise(self.spec.perturbation, self.spec.seed) if self.spec.perturbation else None
        )
        ActivationRecorder(self.spec, self.clock, self.writer, annotations, noise).attach(names)
        model.register_forward_pre_hook(self._on_input, with_kwargs=True)
        self.parameters = ParameterRecorder(
            self.spec, self.clock, self.writer, annotations, parameters, optimizer
        )
        self.parameters.attach()
        self.parameters.initial()
        self._note_dropout(model)

    def step(self) -> Iterator[int]:
        """The body of `ctx.step()`."""
        if self.parameters is None:
            raise RecordError("ctx.step came before ctx.watch(model, optimizer)")
        if self.clock.step is not None:
            raise RecordError("ctx.step was entered inside another ctx.step")
        rng, began = rng_hash(), time.perf_counter()
        number = self.clock.start_step()
        yield number
        stepped = self.parameters.end_step()
        self.writer.add(
            StepEvent(
                step=number,
                microbatches=self.clock.microbatches_done,
                rng_before=rng,
                rng_after=rng_hash(),
                optimizer_stepped=stepped,
                seconds=time.perf_counter() - began,
            )
        )
        self.clock.end_step()
        self.writer.flush()

    def microbatch(self, index: int) -> Iterator[int]:
        """The body of `ctx.microbatch(index)`."""
        if self.clock.step is None:
            raise RecordError("ctx.microbatch was entered outside ctx.step")
        if self.clock.microbatch is not None:
            raise RecordError("ctx.microbatch was entered inside another ctx.microbatch")
        self.clock.start_microbatch(index)
        yield index
        assert self.parameters is not None
        self.parameters.end_microbatch()
        self.clock.end_microbatch()

    def loss(self, value: torch.Tensor) -> None:
        """Write the loss of the current micro-batch."""
        if self.clock.microbatch is None:
            raise RecordError("ctx.loss was called outside ctx.microbatch")
        self._scalar("loss", value, self.clock.microbatch)

    def grad_norm(self, value: torch.Tensor | float) -> None:
        """Write the gradient norm of the current step."""
        if self.clock.step is None:
            raise RecordError("ctx.grad_norm was called outside ctx.step")
        self._scalar("grad_norm", torch.as_tensor(value, dtype=_wide(value)), None)

    def _scalar(self, kind: Any, value: torch.Tensor, microbatch: int | None) -> None:
        assert self.clock.step is not None
        if not self.spec.records(kind):
            return
        layout, source = (), "default"
        if kind == "loss":
            layout, source = self.annotations.loss(self.spec.at) or (layout, source)
        where = TensorId(self.clock.step, microbatch, kind, "", kind)
        if hasattr(value, "full_tensor"):
            value = value.full_tensor()
        self.writer.add_tensor(where, value.detach().clone(), layout, source)

    def _on_input(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        step, microbatch = self.clock.step, self.clock.microbatch
        if step is None or microbatch is None:
            return
        hashes = tuple(tensor_hash(tensor) for _, tensor in tensors_in([args, kwargs]))
        self.writer.add(InputEvent(step, microbatch, hashes))

    def _note_dropout(self, model: nn.Module) -> None:
        active = [
            module.p
            for module in model.modules()
            if isinstance(module, nn.modules.dropout._DropoutNd) and module.training
        ]
        if active and max(active) > 0:
            self.writer.add(NoteEvent("dropout", str(max(active))))


def tensor_hash(tensor: torch.Tensor) -> str:
    """xxh3_128 of a tensor's dtype, shape and values."""
    local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    data = local.detach().cpu().contiguous()
    digest = xxhash.xxh3_128(f"{data.dtype}{tuple(data.shape)}".encode())
    digest.update(as_bytes(data).numpy())
    return digest.hexdigest()


def rng_hash() -> str:
    """A hash of the default generators' state, on the CPU and on every GPU in use."""
    digest = xxhash.xxh3_128(torch.get_rng_state().numpy())
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        for state in torch.cuda.get_rng_state_all():
            digest.update(state.cpu().numpy())
    return digest.hexdigest()


def _wide(value: object) -> torch.dtype:
    return value.dtype if isinstance(value, torch.Tensor) else torch.float64


def _module_names(model: nn.Module) -> dict[nn.Module, str]:
    """Each module's canonical name; a wrapper gives its name to the module it wraps."""
    names: dict[str, nn.Module] = {}
    for name, module in model.named_modules():
        names[canonical(name)] = module
    return {module: name for name, module in names.items()}


def _describe(module: nn.Module, name: str) -> ModuleEvent:
    cls = type(module)
    try:
        source = f"{inspect.getsourcefile(cls)}:{inspect.getsourcelines(cls)[1]}"
    except (OSError, TypeError):
        source = ""  # made at run time, or in a C extension
    parameters = tuple(name for name, _ in module.named_parameters(recurse=False))
    return ModuleEvent(name, cls.__qualname__, source, parameters)
