"""Records the tensors of parameters: gradients, main gradients, values, optimizer state."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn

from pytest_trainsafe.annotations.declared import Annotations
from pytest_trainsafe.compat.tensors import version_of
from pytest_trainsafe.core.layout import Flat, Layout, Owned
from pytest_trainsafe.core.mesh import mesh_of
from pytest_trainsafe.core.tensor_id import INITIAL, Kind, TensorId
from pytest_trainsafe.record.adapter import Engine, ParameterAdapter, RankTensor, adapters
from pytest_trainsafe.record.clock import Clock
from pytest_trainsafe.record.hooks.changes import GradientReplacer
from pytest_trainsafe.record.layouts.dtensor import is_dtensor
from pytest_trainsafe.record.lines.sites import Sites
from pytest_trainsafe.record.model.names import split
from pytest_trainsafe.record.model.parameter_layout import (
    gradient_partial_axes,
    parameter_layout,
    summed,
)
from pytest_trainsafe.record.tensors import (
    local_values,
    name_gradients,
    name_in_ledger,
    on_gradient,
    own_layout,
)
from pytest_trainsafe.record.training.clipping import Clip
from pytest_trainsafe.record.training.contributions import Contributions
from pytest_trainsafe.record.training.masters import is_copy, received
from pytest_trainsafe.record.training.optimizer import listen, owned_by, stepping
from pytest_trainsafe.record.training.parameter_adapter import AttributeParameterAdapter
from pytest_trainsafe.record.training.unclipped import Unclipped, Waiting
from pytest_trainsafe.trace.run_spec import RunSpec
from pytest_trainsafe.trace.schema import NoteEvent, TensorEvent
from pytest_trainsafe.trace.writer import RankWriter


class ParameterRecorder:
    """Records the named parameters of one model and the optimizer that updates them."""

    def __init__(
        self,
        spec: RunSpec,
        clock: Clock,
        writer: RankWriter,
        annotations: Annotations,
        parameters: dict[str, nn.Parameter],
        optimizer: Any,
        parameter_adapter: ParameterAdapter | None = None,
        engine: Engine | None = None,
        sites: Sites | None = None,
        replacer: GradientReplacer | None = None,
    ) -> None:
        self.spec = spec
        self.sizes = spec.point.sizes
        self.clock = clock
        self.writer = writer
        self.parameters = parameters
        self.optimizer = optimizer
        self.engine = engine
        self.sites = sites
        self.parameter_adapter = parameter_adapter or AttributeParameterAdapter(
            self.sizes, optimizer
        )
        self.layouts = {
            name: parameter_layout(name, parameter, spec.point, annotations)
            for name, parameter in parameters.items()
        }
        self.partial_axes = {
            name: gradient_partial_axes(name, parameter, spec.point, annotations)
            for name, parameter in parameters.items()
        }
        self._names = {name: split(name) for name in parameters}
        self._contributions = Contributions()
        self._last: dict[str, TensorEvent] = {}
        self._written: set[int] = set()
        self.annotations = annotations
        self.optimizer_stepped = False
        self._main_written: set[str] = set()
        self._main_held: set[str] = set()
        self._seen_by_wrapper: dict[str, RankTensor] = {}
        self._versions: list[int] = []
        self._skipping = ""
        self._hooked: set[str] = set()
        self._with_gradient: set[str] = set()
        self._noted: set[str] = set()
        self._replacer = replacer
        self._received = partial(received, self.parameter_adapter, parameters, self.sizes)
        self._unclipped = Unclipped(spec, clock, writer, parameters, self._gradients)
        #: Removes the loss scale from a gradient, if a framework uses one.
        self.unscaled: Callable[[torch.Tensor], torch.Tensor] = lambda grad: grad

    def attach(self) -> None:
        """Starts to observe the parameters' gradients and the optimizer."""
        for name, parameter in self.parameters.items():
            name_in_ledger(parameter, name)
        if self.engine is not None:
            self.engine.listen(self.before_step, self.after_step)
        elif self.optimizer is not None:
            listen(self.optimizer, self)

    def attach_to_unsharded(self, modules: Iterable[nn.Module]) -> None:
        """Starts to observe the gradients of the unsharded copies of sharded parameters."""

        def hook(name: str) -> Callable[[torch.Tensor], None]:
            return self._on_gradient(name, unsharded=True)

        for adapter in adapters():
            adapter.listen_to_unsharded(modules, self.parameters, hook)

    def initial(self) -> None:
        """Writes the values before the first step: parameters and any master copies."""
        for name, parameter in self.parameters.items():
            if self._is_owned(name):
                self.writer.add(NoteEvent("local", f"param_grad {name}"))
            self._add_value(name, parameter, step=INITIAL)
            self._add_master(name, parameter, step=INITIAL)

    def start_step(self) -> None:
        """Resets the state of the step; hooks parameters that now require gradients."""
        self.optimizer_stepped = False
        self._main_written.clear()
        self._main_held.clear()
        self._skipping = ""
        for name, parameter in self.parameters.items():
            if parameter.requires_grad and name not in self._hooked:
                self._hooked.add(name)
                on_gradient(parameter, self._on_gradient(name))
                name_gradients(parameter, name)

    def write(self, microbatch: int) -> None:
        """Writes the gradients of one micro-batch; its later gradients are not recorded."""
        for held in self._contributions.pop(microbatch):
            self.writer.add_snapshot(*held)
        self._written.add(microbatch)

    def write_all(self) -> None:
        """Writes the gradients of all micro-batches, even of those that may not be finished."""
        for microbatch in self._contributions.microbatches:
            self.write(microbatch)

    def drop(self, microbatch: int) -> None:
        """Discards the gradients of a micro-batch that an exception ended."""
        self._contributions.pop(microbatch)
        self._written.add(microbatch)

    def finish_step(self) -> bool:
        """Writes parameters and optimizer state; returns whether the optimizer stepped."""
        self._write_main_grads()
        self._note_missing_gradients()
        if self._skipping and not self.optimizer_stepped:
            why = f"{self._skipping}.step() was called, but did not call an optimizer's step()"
            self.writer.add(NoteEvent("skipped", f"step {self.clock.step}, {why}"))
        self.write_values()
        return self.optimizer_stepped

    def write_values(self, step: int | None = None) -> None:
        """Writes parameters, master copies and optimizer state, as of `step` or the current one."""
        for name, parameter in self.parameters.items():
            self._add_value(name, parameter, step)
            self._add_master(name, parameter, step)
            for key, held in self.parameter_adapter.states(name, parameter):
                self._add_state(name, parameter, key, held, step)

    def end_step(self) -> None:
        """Discards the state of the step, including gradients that were not written."""
        self._contributions.clear()
        self._written.clear()
        self._unclipped.end_step()
        self._seen_by_wrapper = {}

    def changed(self) -> list[str]:
        """The parameters whose values on this rank differ from those that were written last."""
        found = []
        for name, event in self._last.items():
            tensor = local_values(self.parameter_adapter.value(name, self.parameters[name]).tensor)
            now = self.writer.snapshot(event.id, tensor, event.layout)
            # A parameter that was gathered or converted holds the same values.
            same_form = (now.shape, str(now.dtype)) == (event.shape, f"torch.{event.dtype}")
            if same_form and now.digest != event.hash:
                found.append(name)
        return found

    def finish(self) -> None:
        """Notes, after the program, that clipping has had no effect."""
        self._unclipped.finish()

    def norm_reported(self) -> None:
        """The program reports the norm of its gradients, by which it may clip them itself."""
        self._unclipped.norm_reported = True

    def before_clip(self, clip: Clip) -> None:
        """Takes snapshots of the gradients: the program is about to clip them."""
        if self.clock.step is not None and not self._main_written:
            self._unclipped.take(clip)

    @property
    def _split(self) -> bool:
        """Whether dp ranks divide each micro-batch, so that its gradient is a sum over dp."""
        return self.clock.split and self.sizes["dp"] > 1

    def _is_owned(self, name: str) -> bool:
        """Whether the parameter belongs to an expert that only some ranks hold."""
        return any(isinstance(placement, Owned) for placement in self.layouts[name][0])

    def _on_gradient(self, name: str, unsharded: bool = False) -> Callable[[torch.Tensor], None]:
        def hook(grad: torch.Tensor) -> None:
            self._unclipped.forget()  # an earlier clip did not have the gradient of the whole step
            microbatch = self.clock.microbatch
            if microbatch is None:
                return
            self.clock.backward(microbatch, sure=False)
            self._with_gradient.add(name)
            if microbatch in self._written or not self.spec.records("param_grad"):
                return
            if self._is_owned(name):
                return  # an expert gets tokens from several ranks, with different micro-batches
            where = self._where("param_grad", name, microbatch=microbatch)
            terms = (*self.partial_axes[name], *(("dp",) if self._split else ()))
            layout, source = self._layout(name, grad, terms, whole=unsharded)
            layout += self.annotations.unreduced(self.spec.point)
            part = self.writer.snapshot(where, local_values(self.unscaled(grad)), layout)
            self._contributions.add(microbatch, name, (where, part, layout, source))

        return hook

    def _note_missing_gradients(self) -> None:
        """Notes sharded parameters for which no micro-batch's gradient could be recorded."""
        if not self._with_gradient or not self.spec.records("param_grad"):
            return
        for name, parameter in self.parameters.items():
            why = "which FSDP2 reduced before they could be recorded"
            text = f"the micro-batch gradients of {name}, {why}"
            if name in self._with_gradient or text in self._noted:
                continue
            # By now the program may have freed the gradient that its optimizer used.
            if name in self._main_held and is_dtensor(parameter):
                self.writer.add(NoteEvent("local", f"param_grad {name}"))
                self._note_not_compared(text)

    def before_step(self, has_closure: bool, owned: Collection[int] = ()) -> None:
        """Writes the gradients that a step will use, unless its closure has yet to compute them.

        `owned` has the ids of the parameters that the optimizer updates.
        """
        if self.clock.step is None:
            return
        self.optimizer_stepped = True
        if self.sites is not None:
            self.sites.note("step", self.clock.step)
            self.sites.start_own_step(localising=self._replacer is not None)
        if not has_closure:  # a closure has yet to compute the gradients
            self._write_main_grads(owned, replace=True)
            self.clock.stepping = True

    def after_step(self, owned: Collection[int] = ()) -> None:
        """Writes the gradients that the step used, and notes a step that the engine skipped."""
        self.clock.stepping, self.clock.stepped = False, True
        if self.sites is not None:
            self.sites.end_own_step()
        if self.clock.step is not None:
            self._write_main_grads(owned)
            if why := self.engine.skipped() if self.engine is not None else "":
                self.optimizer_stepped = False
                self.writer.add(NoteEvent("skipped", f"step {self.clock.step}, {why}"))

    def enter_wrapper(self) -> None:
        """Keeps the main gradients: an optimizer's wrapper may free them before its step."""
        if self.clock.step is None:
            return
        self._seen_by_wrapper = dict(self._held_main_grads())
        self._versions = [version_of(parameter) for parameter in self.parameters.values()]

    def leave_wrapper(self, wrapper: str) -> None:
        """Writes gradients if an optimizer's `wrapper` updated parameters by code of its own."""
        if self.clock.step is None:
            return
        versions = [version_of(parameter) for parameter in self.parameters.values()]
        if not self.optimizer_stepped and versions != self._versions:
            self.before_step(has_closure=True)
            self._write_main_grads()
        self._seen_by_wrapper = {}
        self._skipping = wrapper

    def _write_main_grads(self, owned: Collection[int] = (), replace: bool = False) -> None:
        """Writes the gradients that the optimizer uses, once per step, as soon as there are any.

        With `replace`, a Run of a localisation then replaces them; the step has yet to use them.
        With several optimizers, each writes the gradients of its own parameters. The first to step
        also writes those of parameters in no optimizer, since one may hold their master copies.
        """
        self._unclipped.write()
        others: frozenset[int] = frozenset()
        if owned and self.engine is None:
            others = frozenset().union(*map(owned_by, stepping(self.optimizer))) - {*owned}
        to_write = {
            name
            for name, parameter in self.parameters.items()
            if name not in self._main_written and id(parameter) not in others
        }
        found = self._held_main_grads(stepping=bool(owned))
        held = {name: held for name, held in found if name in to_write}
        if held:
            self._main_written |= to_write
            self._main_held |= held.keys()
        for name, gradient in held.items():
            self._add("main_grad", name, gradient)
        if replace and held and self._replacer is not None:
            self._replacer.begin(stepping(self.optimizer))
            for name, gradient in held.items():
                where = self._where("main_grad", name)
                layout, _ = self._layout(name, gradient.tensor, flat_range=gradient.flat_range)
                self._replacer.replace(where, self.parameters[name], gradient.tensor, layout)
            for name in sorted(to_write - held.keys()):
                self._replacer.absent(self._where("main_grad", name), self.parameters[name])

    def _held_main_grads(self, stepping: bool = False) -> Iterator[tuple[str, RankTensor]]:
        """Yields the main gradients; for freed ones, the gradients that `enter_wrapper` kept.

        They are those of master copies if an optimizer of these is `stepping`.
        """
        optimizer = self.optimizer if stepping and self.engine is None else None
        for name, held in self._received(optimizer):
            held = held or self._seen_by_wrapper.get(name)
            if held is not None:
                yield name, held

    def _gradients(self, clip: Clip) -> Iterator[Waiting]:
        """Snapshots of the present main gradients, to be written as the gradients before a clip."""
        optimizer = self.optimizer if clip.parameters and self.engine is None else None
        for name, held in self._received(optimizer, clip.parameters or ()):
            if held is None or (held.flat_range is not None and not held.flat_range.length):
                continue
            where = self._where("unclipped_grad", name)
            layout, source = self._layout(name, held.tensor, flat_range=held.flat_range)
            snapshot = self.writer.snapshot(where, local_values(held.tensor), layout)
            yield where, snapshot, layout, source

    def _add_value(self, name: str, parameter: nn.Parameter, step: int | None = None) -> None:
        held = self.parameter_adapter.value(name, parameter)
        copy = is_copy(held, self.parameter_adapter.master(name, parameter))
        self._add("param", name, held, step=step, copy=copy)

    def _add_master(self, name: str, parameter: nn.Parameter, step: int | None = None) -> None:
        """Writes the master copy, if the parameter has one whose layout is known."""
        held = self.parameter_adapter.master(name, parameter)
        if isinstance(held, str):
            self._note_not_compared(held)
        elif held is not None:
            self._add("master_param", name, held, step=step)

    def _add_state(
        self,
        name: str,
        parameter: nn.Parameter,
        key: str,
        held: RankTensor | str,
        step: int | None = None,
    ) -> None:
        """Writes one tensor of the optimizer's state, if its layout is known."""
        suffix = f".{key}"
        if isinstance(held, str):
            self._note_not_compared(held)
        elif held.flat_range is not None or tuple(
            held.tensor.shape
        ) == self.parameter_adapter.shape(parameter):
            self._add("optimizer_state", name, held, suffix=suffix, step=step)
        elif held.tensor.numel() == 1 or not self.layouts[name][0]:
            self._add("optimizer_state", name, held, suffix=suffix, step=step, whole=True)
        else:  # the layout of a factored or packed state of a shard is not known
            self._note_not_compared(
                f"the optimizer's {key} of {name} does not have the parameter's shape"
            )

    def _note_not_compared(self, what: str) -> None:
        """Records, once, that a value is missing in the trace and so is not compared."""
        if what not in self._noted:
            self._noted.add(what)
            self.writer.add(NoteEvent("not_compared", what))

    def _add(
        self,
        kind: Kind,
        name: str,
        held: RankTensor,
        *,
        suffix: str = "",
        step: int | None = None,
        whole: bool = False,
        copy: bool = False,
    ) -> None:
        if not self.spec.records(kind) or (
            held.flat_range is not None and not held.flat_range.length
        ):
            return  # other ranks write it
        where = self._where(kind, name, suffix, step)
        layout, source = self._layout(name, held.tensor, whole=whole, flat_range=held.flat_range)
        event = self.writer.add_tensor(where, local_values(held.tensor), layout, source, copy)
        if kind == "param":
            self._last[name] = event

    def _where(
        self,
        kind: Kind,
        name: str,
        suffix: str = "",
        step: int | None = None,
        microbatch: int | None = None,
    ) -> TensorId:
        step = self.clock.step if step is None else step
        assert step is not None
        module, leaf = self._names[name]
        return TensorId(step, microbatch, kind, module, leaf + suffix)

    def _layout(
        self,
        name: str,
        tensor: torch.Tensor,
        summed_over: tuple[str, ...] = (),
        whole: bool = False,
        flat_range: Flat | None = None,
    ) -> tuple[Layout, str]:
        """The layout of a tensor that belongs to the parameter `name`, and the layout's source.

        A DTensor's placements give its layout.  Other tensors have the parameter's layout; of this,
        `whole` keeps only the ranks that own an expert.  Adds `flat_range`, and the sums over the
        axes `summed_over`.
        """
        given = self.layouts[name]
        if whole:  # still restricted to the owners, if the parameter has owners
            given = tuple(p for p in given[0] if isinstance(p, Owned)), "default"
        layout, source = own_layout(tensor, self.sizes) or given
        if flat_range is not None:
            layout = (*(layout if flat_range.shape else ()), flat_range)
        summed_up = summed(layout, summed_over, mesh_of(self.sizes)) if summed_over else layout
        return summed_up, source
