"""Watches models that DistributedDataParallel wraps."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from torch import nn

from pytest_trainsafe.compat.autograd import right_factor
from pytest_trainsafe.judges.learn.instrument.slips.inputs.criteria import is_node
from pytest_trainsafe.judges.learn.instrument.slips.moments import Moment, Training, Watcher
from pytest_trainsafe.judges.learn.instrument.slips.steps.graph import within
from pytest_trainsafe.record.clock import in_backward

#: The most gathered or reduced tensors that are remembered.
_MANY = 64
#: The most tensors that are gathered for one loss, and operators between a product and the logits.
_FEW, _BETWEEN = 8, 8


class Replicas(Watcher):
    """Sees wrappers that are made, models that run, collectives, backwards and steps."""

    kinds = ("replicated", "module", "step", "collective", "backward", "loss")

    def __init__(self, training: Training) -> None:
        super().__init__(training)
        #: The wrapper of each wrapped model.
        self._wrappers: WeakKeyDictionary[nn.Module, ref[Any]] = WeakKeyDictionary()
        #: Whether the last forward of each wrapper since the last step was to synchronise.
        self._last: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()
        #: What tensors with gradients were gathered into since a model ran.
        self._gathered: list[Any] = []
        #: What this rank gave to gatherings since a model ran.
        self._given: list[torch.Tensor] = []
        #: The nodes that made tensors with gradients which were reduced since the last backward.
        self._reduced: list[Any] = []

    def entered(self, moment: Moment) -> None:
        if moment.kind == "step":
            if moment.argument(0, "closure") is None:
                self._step()
        elif moment.kind == "backward":
            if moment.outermost:
                self._cut()
                self._passed(moment)
        elif moment.kind == "collective":
            self._communicates(moment)
        elif moment.kind == "loss":
            if self._given and moment.api.endswith(".cross_entropy"):
                self._numbers(moment.argument(0, "input"), moment.argument(1, "target"))
        elif moment.kind == "module" and torch.is_grad_enabled() and not in_backward():
            model = moment.thing
            if moment.outermost and next(model.parameters(), None) is not None:
                self._gathered, self._given = [], []  # as what the last step has logged
            if isinstance(model, nn.parallel.DistributedDataParallel):
                self._wrappers[model.module] = ref(model)
                self._last[model] = bool(model.require_backward_grad_sync)
            elif moment.outermost and model.training and self._is_wrapped(model):
                name = type(model).__name__
                self.training.slip("wrapper-bypassed", f"the forward of {name} goes past it")

    def left(self, moment: Moment) -> None:
        if moment.kind == "step" and moment.argument(0, "closure") is not None:
            self._step()  # the closure ran the last micro-batch
        if moment.kind == "replicated" and not moment.failed:
            self._wrappers[moment.thing.module] = ref(moment.thing)

    def _communicates(self, moment: Moment) -> None:
        name = moment.api.rpartition(".")[2]
        if name.startswith("all_gather"):
            own = moment.argument(1, "tensor" if name == "all_gather" else "input_tensor")
            if isinstance(own, torch.Tensor) and own.dim() == 2 and len(self._given) < _FEW:
                self._given.append(own.detach())
        if name == "all_gather":
            target, given = moment.argument(0, "tensor_list"), moment.argument(1, "tensor")
            graded = isinstance(given, torch.Tensor) and given.grad_fn is not None
            if graded and torch.is_grad_enabled() and len(self._gathered) < _MANY:
                self._gathered.append(target)
        elif name == "all_reduce":
            self._reduces(moment.argument(0, "tensor"))
            if not any(self._last.values()):
                return
            place = _place(moment.argument(0, "tensor"))
            for model in self._last:
                if place and any(_place(each.grad) == place for each in model.parameters()):
                    self.training.slip("averaged-twice", "all_reduce of a gradient after it")
                    return

    def _cut(self) -> None:
        """Whether no part of what was gathered has a gradient, not even this rank's own."""
        gathered, self._gathered = self._gathered, []
        for each in gathered:
            if not any(part.requires_grad for part in each if isinstance(part, torch.Tensor)):
                self.training.slip("gathered-without-gradient", f"{len(each)} tensors have none")
                return

    def _numbers(self, logits: object, labels: object) -> None:
        """Whether labels that number gathered examples select those of another rank.

        Where this rank's examples are among those that the logits multiply with is found by what it
        has given, since a program may gather in any order.
        """
        if not isinstance(logits, torch.Tensor) or not isinstance(labels, torch.Tensor):
            return
        if labels.dim() != 1 or logits.dim() != 2 or labels.is_floating_point():
            return
        count, every = logits.shape
        numbers = labels - torch.arange(count, device=labels.device)
        if count < 2 or every % count or every == count or bool((numbers != numbers[0]).any()):
            return
        factor = _right_factor(logits.grad_fn)
        if factor is None or factor.shape[-1] != every:
            return
        own = {
            at
            for at, block in enumerate(factor.detach().T.split(count))  # type: ignore[no-untyped-call]
            if any(torch.equal(block, each.to(block.dtype)) for each in self._given)
        }
        if len(own) == 1 and int(numbers[0]) not in (at * count for at in own):
            text = f"{count} labels from {int(numbers[0])}, this rank's from {min(own) * count}"
            self.training.slip("labels-of-another-rank", text)

    def _reduces(self, tensor: object) -> None:
        graded = isinstance(tensor, torch.Tensor) and tensor.grad_fn is not None
        if graded and torch.is_grad_enabled() and not in_backward():
            assert isinstance(tensor, torch.Tensor)
            if len(self._reduced) < _MANY:
                self._reduced.append(tensor.grad_fn)

    def _passed(self, moment: Moment) -> None:
        """Whether a loss was computed from a tensor that was reduced, and is not that itself."""
        reduced, self._reduced = self._reduced, []
        if not reduced or not isinstance(moment.thing, torch.Tensor):
            return
        found = within(moment.thing, reduced) or []
        if any(each is not moment.thing.grad_fn for each in found):
            self.training.slip("reduced-without-gradient", "the loss is computed from its result")

    def _is_wrapped(self, model: nn.Module) -> bool:
        wrapper = self._wrappers.get(model)
        return wrapper is not None and wrapper() is not None

    def _step(self) -> None:
        if any(not last for last in self._last.values()):
            self.training.slip("not-synchronised", "the last forward before it ran in no_sync()")
        self._last.clear()


def _right_factor(node: Any) -> torch.Tensor | None:
    """The right factor of the product of matrices that is scaled to become logits."""
    waiting = [node]
    for _ in range(_BETWEEN):
        node = waiting.pop(0) if waiting else None
        if is_node(node, "Mm"):
            return right_factor(node)
        if is_node(node, "Mul", "Div", "Add", "Sub"):
            waiting += [each for each, _ in node.next_functions]
    return None


def _place(tensor: object) -> tuple[int, int] | None:
    """The memory of a tensor; None for nothing, or without memory."""
    if not isinstance(tensor, torch.Tensor) or not tensor.numel():
        return None
    return tensor.data_ptr(), tensor.numel()
