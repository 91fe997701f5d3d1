"""Rewrites the values that flow between modules, so that an error in one cannot reach the next.

TTrace (section 4.3) replaces the inputs of every module by tensors of its consistent generator.
Here a module's *outputs* are replaced when it returns them, and the gradients of outputs when they
arrive, in both cases after they were recorded.  The reason is that the layout of an output is known
from annotations or DTensor placements, and the layout of an input often only from the module that
computed it.  So every module gets the same logical inputs at every Point, unless the code between
two modules is wrong; such an error does not spread beyond the next output.  Inputs and their
gradients are recorded as well, to tell an error in the code between modules from one in a module.

Used by the recorder's hooks, in the Runs of a localisation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import torch
from torch import nn

from pytest_trainsafe.annotations.declared import Annotations
from pytest_trainsafe.compat.tensors import is_pending
from pytest_trainsafe.core.code_files import calling_lines
from pytest_trainsafe.core.indices import LayoutError, local_shape
from pytest_trainsafe.core.layout import Coordinates, Layout
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.judges.compare.events import (
    UNKNOWN,
    own_rewrite_key,
    replacement,
    rewrite_key,
)
from pytest_trainsafe.judges.compare.instrument.functions import applied
from pytest_trainsafe.judges.compare.instrument.perturb import Noise
from pytest_trainsafe.record.clock import Clock, in_backward
from pytest_trainsafe.record.hooks.module_hooks import ModuleHooks
from pytest_trainsafe.record.hooks.outputs import (
    arguments,
    replace_tensors,
    tensors_in,
    with_aliases,
)
from pytest_trainsafe.record.layouts.dtensor import is_dtensor
from pytest_trainsafe.record.lines.origins import Origins
from pytest_trainsafe.record.tensors import (
    alias_for_gradient,
    local_values,
    on_gradient,
    own_layout,
)
from pytest_trainsafe.trace.facts import Caller
from pytest_trainsafe.trace.run_spec import RunSpec
from pytest_trainsafe.trace.writer import RankWriter

#: The attribute that marks a tensor as the output of a module: its `Origin`.
_ORIGIN = "_trainsafe_origin"


@dataclass(frozen=True, slots=True)
class Origin:
    """The module that returned a tensor, and the layouts of the tensor and of its gradient."""

    module: str
    layout: Layout
    gradient: Layout

    @property
    def source(self) -> str:
        """The text that is recorded as the source of an input's layout: "output of MODULE"."""
        return f"output of {self.module}"


@dataclass(slots=True)
class _Call:
    """A call of a module.

    `inputs` has the key path, the values and the Origin of each input, until they are written, and
    `nodes` the nodes of autograd at which the call's own graph begins.  `handed` has the nodes of
    the tensors that it hands to modules.
    `base` identifies the call in the trace; it is None until the module returns.  The gradients of
    the inputs are recorded under TensorIds that are made from it.
    """

    module: nn.Module
    name: str
    inputs: list[tuple[str, torch.Tensor, Origin | None]] = field(default_factory=list)
    nodes: list[Any] = field(default_factory=list)
    handed: list[Any] = field(default_factory=list)
    base: TensorId | None = None


class Rewriter:
    """Replaces one rank's outputs and gradients by the values that `spec.rewrite` describes."""

    def __init__(
        self,
        spec: RunSpec,
        coordinates: Coordinates,
        clock: Clock,
        writer: RankWriter,
        annotations: Annotations,
        noise: Noise | None,
        origins: Origins | None = None,
    ) -> None:
        self.target = dict(spec.rewrite)
        self.seed = spec.seed
        self.point = spec.point
        self.coordinates = coordinates
        self.clock = clock
        self.writer = writer
        self.annotations = annotations
        self.noise = noise
        self.origins = origins
        self._running: list[_Call] = []
        self._held: dict[TensorId, tuple[torch.Tensor, Layout, str]] = {}
        self._written: set[TensorId] = set()
        self._callers: set[str] = set()
        self._applied: set[str] = set()
        self._calls: Counter[tuple[int, int | None, str]] = Counter()

    def attach(self, names: Mapping[nn.Module, str], hooks: ModuleHooks) -> None:
        """Installs hooks that keep the inputs of every call, and note which calls are running.

        Call it after the recorder's hooks are installed.  Hooks run in the order of installation,
        and the recorder's hooks call `outputs`, which must run before the call is noted as ended.
        """
        for module, name in names.items():
            hooks.before(module, name, self._enter(name))
            hooks.after(module, name, self._leave, always_call=True)

    def outputs(
        self, base: TensorId, output: object, recomputing: bool, passes_on: bool = False
    ) -> object:
        """Returns the values that a module returns in place of `output`; `base` names its call.

        Also installs the hooks that rewrite the gradients of `output`; call this after installing
        the hooks that record them.  `recomputing` is whether the call is a recomputation.  With
        `passes_on` (for an `nn.Identity`) nothing is rewritten.
        """
        if recomputing:
            # If the module was called only once, that call is the one being repeated.
            call = 0 if self._calls[_once(base)] == 1 else base.call
            base = msgspec.structs.replace(base, call=call)
        else:
            self._calls[_once(base)] += 1
            if self._running and self._running[-1].name == base.module:
                self._note_functions(self._running[-1], output)
                self._running[-1].base = base
                self._write_inputs(self._running[-1], base)

        if passes_on:
            return output

        def rewritten(key_path: str, tensor: torch.Tensor) -> torch.Tensor:
            return self._output(msgspec.structs.replace(base, name=key_path), tensor)

        return replace_tensors(output, rewritten)

    def write(self, microbatch: int) -> None:
        """Writes the gradients of the modules' inputs in a micro-batch to the trace.

        A gradient that arrives for the same input after this call is ignored.
        """
        for where, (values, layout, source) in list(self._held.items()):
            if where.microbatch == microbatch:
                self.writer.add_tensor(where, values, layout, source)
                self._written.add(where)
                del self._held[where]

    def _output(self, where: TensorId, tensor: torch.Tensor) -> torch.Tensor:
        if type(tensor) is not torch.Tensor and not is_dtensor(tensor) and not is_pending(tensor):
            return tensor
        if not tensor.is_floating_point() or tensor.layout != torch.strided:
            return tensor
        order = self.annotations.permuted(where.module, where.name, self.point, tensor.ndim)
        if order and is_dtensor(tensor):
            return tensor
        layouts = [self._layout(where, tensor, gradient) for gradient in (False, True)]
        if self.origins is not None and not hasattr(tensor, _ORIGIN):
            self.origins.note("output", where.module, tensor)
        origin = Origin(where.module, *layouts)
        values = self._values(where, tensor, origin.layout, order)
        gradient = msgspec.structs.replace(where, kind="activation_grad")
        if tensor.requires_grad and rewrite_key(gradient) in self.target:
            self._rewrite_gradient(gradient, tensor, origin.gradient, order)
        if values is not None:
            given = tensor, [values], where.module
            tensor = _Rewritten.apply(*given)  # type: ignore[no-untyped-call]
        if not order:  # otherwise the layout describes the tensor after the permutation
            setattr(tensor, _ORIGIN, origin)
        if self.origins is not None:
            self.origins.forget(tensor)
        return tensor

    def _rewrite_gradient(
        self, where: TensorId, tensor: torch.Tensor, layout: Layout, order: tuple[int, ...]
    ) -> None:
        def rewritten(grad: torch.Tensor) -> torch.Tensor:
            values = self._values(where, grad, layout, order)
            return grad if values is None else values

        node, number = tensor.grad_fn, tensor.output_nr
        if node is None:
            on_gradient(tensor, rewritten)
            return

        def arriving(grads: tuple[torch.Tensor | None, ...]) -> tuple[torch.Tensor | None, ...]:
            return tuple(
                rewritten(grad) if grad is not None and index == number else grad
                for index, grad in enumerate(grads)
            )

        # Hook the node and not the tensor: the tensor's hooks run first, and they record.
        node.register_prehook(arriving)

    def _values(
        self, where: TensorId, like: torch.Tensor, layout: Layout, order: tuple[int, ...] = ()
    ) -> torch.Tensor | None:
        """The tensor to use in place of `like`; None if it is not to be rewritten.

        `order` is the permutation that brings the dimensions of `like` into their logical order.
        """
        if order:
            values = self._values(where, like.permute(order), layout)
            back = sorted(range(len(order)), key=order.__getitem__)
            return None if values is None else values.permute(back).contiguous()
        target = self.target.get(own_rewrite_key(where)) or self.target.get(rewrite_key(where))
        if target is None:
            return None
        local, sizes = local_values(like), self.point.sizes
        try:
            expected = local_shape(layout, self.coordinates, sizes, target.shape)
        except (LayoutError, IndexError):
            return None
        if len(target.shape) != local.ndim or tuple(local.shape) != expected:
            return None  # its shape is wrong, and it has been recorded with that shape
        values = replacement(where, target, self.seed, local, layout, self.coordinates, sizes=sizes)
        if self.noise is not None:
            values = self.noise(f"{where}/rewritten", values)
        if is_dtensor(like):
            held: Any = like
            return torch.distributed.tensor.DTensor.from_local(
                values,
                held.device_mesh,
                held.placements,
                run_check=False,
                shape=like.shape,
                stride=like.stride(),
            )
        return values

    def _layout(self, where: TensorId, tensor: torch.Tensor, gradient: bool) -> Layout:
        found = own_layout(tensor, self.point.sizes) or self.annotations.module(
            where.module, where.name, self.point, tensor.shape, gradient
        )
        layout = found[0] if found else ()
        return layout + self.annotations.unreduced(self.point) if gradient else layout

    # Inputs.
    def _enter(self, name: str) -> Callable[..., Any]:
        def hook(module: nn.Module, args: Any, kwargs: Any) -> Any:
            call = _Call(module, name)
            self._note_caller(name)
            self._running.append(call)
            if self.clock.step is None or in_backward():
                return None
            return self._inputs(call, args, kwargs)

        return hook

    def _leave(self, module: nn.Module, args: object, kwargs: object, output: object) -> None:
        while self._running and self._running.pop().module is not module:
            pass  # remove calls that an exception ended

    def _note_caller(self, name: str) -> None:
        if self._running and name not in self._callers:
            self._callers.add(name)
            at, user = calling_lines()
            self.writer.add(Caller(name, self._running[-1].name, user or at))

    def _note_functions(self, call: _Call, output: object) -> None:
        """Writes the autograd functions that a module applies, at its first call."""
        if call.name in self._applied:
            return
        self._applied.add(call.name)
        ends = [tensor.grad_fn for _, tensor in tensors_in(output)] + call.handed
        for event in applied(call.name, ends, call.nodes, _Rewritten):
            self.writer.add(event)

    def _inputs(self, call: _Call, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Keeps the inputs' values, and replaces each input by an alias to observe its gradient."""
        aliases: dict[int, torch.Tensor] = {}
        for key_path, tensor in tensors_in(arguments(args, kwargs), "input"):
            if tensor.layout != torch.strided:
                continue
            if not tensor.is_floating_point():
                # Tokens, labels, masks.  They have no gradient and are never rewritten, but a
                # module that gets different ones is not the faulty one.
                if not tensor.is_complex():
                    call.inputs.append((key_path, local_values(tensor).clone(), None))
                continue
            origin = getattr(tensor, _ORIGIN, None)
            if id(tensor) not in aliases:
                aliases[id(tensor)] = alias = alias_for_gradient(tensor)
                call.nodes.append(alias.grad_fn)
                if len(self._running) > 1:
                    self._running[-2].handed.append(tensor.grad_fn)
                if origin is not None:
                    setattr(alias, _ORIGIN, origin)
                if alias is not tensor:
                    on_gradient(alias, self._hold(call, key_path, origin))
            call.inputs.append((key_path, local_values(tensor).clone(), origin))

        return with_aliases(args, kwargs, aliases)

    def _hold(
        self, call: _Call, key_path: str, origin: Origin | None
    ) -> Callable[[torch.Tensor], None]:
        def hook(grad: torch.Tensor) -> None:
            if call.base is None or call.base.step != self.clock.step:
                return
            where = msgspec.structs.replace(call.base, kind="activation_grad", name=key_path)
            if where in self._written:
                return
            values = local_values(grad).to("cpu", copy=True)
            if where in self._held:
                values += self._held[where][0]
            own = own_layout(grad, self.point.sizes)
            if own is not None:
                layout = own[0] + self.annotations.unreduced(self.point)
                self._held[where] = values, layout, own[1]
            elif origin is not None:
                self._held[where] = values, origin.gradient, origin.source
            else:
                self._held[where] = values, (), UNKNOWN

        return hook

    def _write_inputs(self, call: _Call, base: TensorId) -> None:
        for key_path, values, origin in call.inputs:
            where = msgspec.structs.replace(base, name=key_path)
            layout, source = (origin.layout, origin.source) if origin else ((), UNKNOWN)
            self.writer.add_tensor(where, values, layout, source)
        call.inputs.clear()


class _Rewritten(torch.autograd.Function):
    """Replaces values in the forward; passes the gradient through unchanged."""

    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, values: list[torch.Tensor], module: str
    ) -> torch.Tensor:
        ctx.module = module  # for `functions.py`, which sees the node of the graph
        return values[0]

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad, None, None


def _once(base: TensorId) -> tuple[int, int | None, str]:
    return base.step, base.microbatch, base.module
