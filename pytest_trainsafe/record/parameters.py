"""Records what belongs to parameters: gradients, main gradients, values, optimizer state."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn

from pytest_trainsafe.align.annotations import Annotations
from pytest_trainsafe.align.layout import Layout, Partial
from pytest_trainsafe.align.resolve import gradient_partial_axes, parameter_layout
from pytest_trainsafe.launch.ledger import name_tensor
from pytest_trainsafe.record.clock import Clock
from pytest_trainsafe.record.names import split
from pytest_trainsafe.record.spec import RunSpec
from pytest_trainsafe.trace.schema import INITIAL, Kind, TensorId
from pytest_trainsafe.trace.writer import RankWriter


class ParameterRecorder:
    """Watches the named parameters of one model and the optimizer that updates them."""

    def __init__(
        self,
        spec: RunSpec,
        clock: Clock,
        writer: RankWriter,
        annotations: Annotations,
        parameters: dict[str, nn.Parameter],
        optimizer: Any,
    ) -> None:
        self.spec = spec
        self.clock = clock
        self.writer = writer
        self.parameters = parameters
        self.optimizer = optimizer
        self.layouts = {
            name: parameter_layout(name, parameter, spec.at, annotations)
            for name, parameter in parameters.items()
        }
        self.partial_axes = {
            name: gradient_partial_axes(name, parameter, spec.at, annotations)
            for name, parameter in parameters.items()
        }
        self.contributions: dict[str, torch.Tensor] = {}
        self.optimizer_stepped = False

    def attach(self) -> None:
        """Install the gradient hooks and listen to the optimizer."""
        for name, parameter in self.parameters.items():
            name_tensor(parameter, name)
            if parameter.requires_grad:
                parameter.register_hook(self._on_gradient(name))
                parameter.register_post_accumulate_grad_hook(_name_gradient(name))
        if isinstance(self.optimizer, torch.optim.Optimizer):
            self.optimizer.register_step_pre_hook(lambda *_: self.before_optimizer())
        elif self.optimizer is not None:
            self._wrap_step()

    def _wrap_step(self) -> None:
        """Optimizer wrappers that are no `torch.optim.Optimizer` have no hooks of their own."""
        step = self.optimizer.step

        def watched(*args: Any, **kwargs: Any) -> Any:
            self.before_optimizer()
            return step(*args, **kwargs)

        self.optimizer.step = watched

    def _on_gradient(self, name: str) -> Any:
        def hook(grad: torch.Tensor) -> None:
            # One backward may reach a parameter in several parts (reentrant recomputation).
            if self.clock.microbatch is None or not self.spec.records("param_grad"):
                return
            earlier = self.contributions.get(name)
            part = grad.detach()
            self.contributions[name] = part.clone() if earlier is None else earlier + part

        return hook

    def end_microbatch(self) -> None:
        """Write what the backward of this micro-batch added to each gradient."""
        for name, grad in self.contributions.items():
            partial = tuple(Partial(axis) for axis in self.partial_axes[name])
            self._add("param_grad", name, grad, suffix="", partial=partial)
        self.contributions.clear()

    def before_optimizer(self) -> None:
        """Write the gradients the optimizer is about to use."""
        if self.optimizer_stepped or self.clock.step is None:
            return  # an inner optimizer of a wrapper that was already seen
        self.optimizer_stepped = True
        self._write_main_grads()

    def initial(self) -> None:
        """Write the parameters' values before the first step."""
        for name, parameter in self.parameters.items():
            self._add("param", name, parameter, step=INITIAL)

    def end_step(self) -> bool:
        """Write parameters and optimizer state; say whether the optimizer stepped."""
        stepped = self.optimizer_stepped
        if not stepped:
            self._write_main_grads()
        self.optimizer_stepped = False
        for name, parameter in self.parameters.items():
            self._add("param", name, parameter)
            master = getattr(parameter, "main_param", None)
            if isinstance(master, torch.Tensor):
                self._add("master_param", name, master)
            for key, value in self._state(parameter, master):
                same = value.shape == parameter.shape
                self._add("optimizer_state", name, value, suffix=f".{key}", sharded=same)
        return stepped

    def _write_main_grads(self) -> None:
        for name, parameter in self.parameters.items():
            grad = getattr(parameter, "main_grad", None)
            if grad is None:
                grad = parameter.grad
            if grad is not None:
                name_tensor(grad, f"{name}.grad")
                self._add("main_grad", name, grad)

    def _state(
        self, parameter: nn.Parameter, master: object
    ) -> Iterator[tuple[str, torch.Tensor]]:
        inner = getattr(self.optimizer, "optimizer", self.optimizer)
        states = getattr(inner, "state", {})
        for holder in (parameter, master):
            if isinstance(holder, torch.Tensor) and holder in states:
                for key, value in states[holder].items():
                    if isinstance(value, torch.Tensor):
                        yield str(key), value
                return

    def _add(
        self,
        kind: Kind,
        name: str,
        tensor: torch.Tensor,
        *,
        suffix: str = "",
        partial: Layout = (),
        step: int | None = None,
        sharded: bool = True,
    ) -> None:
        if not self.spec.records(kind):
            return
        if step is None:
            step = self.clock.step
        assert step is not None
        module, leaf = split(name)
        microbatch = self.clock.microbatch if kind == "param_grad" else None
        where = TensorId(step, microbatch, kind, module, leaf + suffix)
        layout, source = self.layouts[name] if sharded else ((), "default")
        local = tensor.detach()
        if hasattr(local, "to_local"):
            local = local.to_local()
        self.writer.add_tensor(where, local.clone(), layout + partial, source)


def _name_gradient(name: str) -> Any:
    def hook(parameter: torch.Tensor) -> None:
        if parameter.grad is not None:
            name_tensor(parameter.grad, f"{name}.grad")

    return hook


def unique_parameters(named: Iterable[tuple[str, nn.Parameter]]) -> dict[str, nn.Parameter]:
    """The parameters by name, tied ones once under their first name."""
    seen: dict[int, str] = {}
    unique: dict[str, nn.Parameter] = {}
    for name, parameter in named:
        if id(parameter) not in seen:
            seen[id(parameter)] = name
            unique[name] = parameter
    return unique
