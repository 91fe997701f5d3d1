"""Records what ranks are compared by: batches, buffers, and how gradients were scaled.

`relations/alike.py` says what of it is equal on which ranks.
"""

from __future__ import annotations

import statistics
from weakref import WeakKeyDictionary

import torch
import xxhash
from torch import nn
from torch.optim import Optimizer

from pytest_trainsafe.compat.modules import is_batch_norm, own_buffers
from pytest_trainsafe.compat.tensors import local_part
from pytest_trainsafe.judges.learn.events.slips import BATCH, BUFFERS, SCALING
from pytest_trainsafe.judges.learn.instrument.slips.data import tensors_in
from pytest_trainsafe.judges.learn.instrument.slips.moments import (
    Moment,
    Training,
    Watcher,
    parameters_of,
)
from pytest_trainsafe.record.clock import in_backward

#: So many rounds are recorded.
_ROUNDS = 8
#: Smaller batches may be equal by chance.
_ELEMENTS = 8
#: So many tensors of a batch are looked at one by one, of so many different elements.
_PARTS, _DISTINCT, _LOOKED = 8, 6, 64
#: The least share of the gradients that were scaled by one factor, and how exactly.
_SHARE, _EQUAL = 0.65, 1e-3
#: The most parameters whose gradients are read, and how often in a round.
_MANY, _OFTEN = 256, 64


class Shared(Watcher):
    """Sees models that run, backwards, collectives and steps, if there are several ranks."""

    kinds = ("module", "backward", "collective", "step")

    def __init__(self, training: Training) -> None:
        super().__init__(training)
        self._batch = ""
        #: The model that ran first in training mode, whether it has run since the last step, and
        #: whether a wrapper sends buffers.
        self._model: nn.Module | None = None
        self._ran = self._sent = False
        #: The norm of each gradient when a backward or a collective was last over, by parameter.
        self._norms: WeakKeyDictionary[Optimizer, dict[int, float]] = WeakKeyDictionary()
        self._read = 0

    def entered(self, moment: Moment) -> None:
        if not moment.outermost or not self._records():
            return
        if moment.kind == "module":
            if torch.is_grad_enabled() and moment.thing.training and not in_backward():
                if not self._batch:
                    self._batch = self._digest(tensors_in([*moment.args, *moment.kwargs.values()]))
                self._sent |= _sends_buffers(moment.thing)
                if self._model is None:
                    self._model = moment.thing
                if moment.thing is self._model and not self._ran and not self._sent:
                    self._buffers()
                self._ran |= moment.thing is self._model
        elif moment.kind == "step" and moment.argument(0, "closure") is None:
            assert self.training.shared is not None
            for name, text in ((BATCH, self._batch), (SCALING, self._scaling(moment.thing))):
                if text:
                    self.training.shared(name, text)
            self._batch, self._read, self._ran = "", 0, False
            self._norms.pop(moment.thing, None)

    def left(self, moment: Moment) -> None:
        if moment.kind not in ("backward", "collective") or not moment.outermost:
            return
        if moment.failed or in_backward() or moment.inside("step") or not self._records():
            return
        if self._read < _OFTEN:
            self._read += 1
            for each in list(self.training.optimizers):
                self._norms[each] = _norms(each)

    def ended(self) -> None:
        if self._model is not None and not (self._ran or self._sent) and self._records():
            self._buffers()

    def _buffers(self) -> None:
        """Record the buffers with which the model begins a step, or with which it is left.

        Ranks keep those of batch norms apart, and may count what each of them does.
        """
        assert self.training.shared is not None
        hashed, count = xxhash.xxh3_64(), 0
        assert self._model is not None
        for module in self._model.modules():
            for each in () if is_batch_norm(module) else own_buffers(module).values():
                if each is None or not each.is_floating_point() or local_part(each) is not None:
                    continue
                if not _counts(each):
                    hashed.update(self.training.digest(each, True).to_bytes(8, "little"))
                    count += 1
        self.training.shared(BUFFERS, hashed.hexdigest() if count else "none")

    def _records(self) -> bool:
        return self.training.ranks and self.training.young < _ROUNDS

    def _digest(self, given: list[torch.Tensor]) -> str:
        """A hash of what a model gets; "" if another rank may have made a part of it.

        It is followed by a hash of each tensor that looks drawn, and "-" for another one.
        """
        if any(each.requires_grad for each in given):
            return ""
        if sum(each.numel() for each in given) < _ELEMENTS:
            return ""
        hashed, parts = xxhash.xxh3_64(), []
        for each in given:
            digest = self.training.digest(each, True).to_bytes(8, "little")
            hashed.update(digest)
            parts.append(digest[:4].hex() if _is_drawn(each) else "-")
        return " ".join([hashed.hexdigest(), *parts[:_PARTS]])

    def _scaling(self, optimizer: Optimizer) -> str:
        """The factor of most gradients since the last backward or collective; "" if none is."""
        before, now = self._norms.get(optimizer, {}), _norms(optimizer)
        factors = [norm / before[key] for key, norm in now.items() if before.get(key)]
        if len(factors) < 2:
            return ""
        usual = statistics.median_low(factors)
        same = sum(abs(each - usual) <= _EQUAL * usual for each in factors)
        return f"{usual:.6g}" if same >= _SHARE * len(factors) else ""


def _is_drawn(tensor: torch.Tensor) -> bool:
    """Whether a tensor has many different elements in no order, as noise and times have."""
    if tensor.numel() < _ELEMENTS or tensor.dtype is torch.bool or tensor.is_complex():
        return False
    some = tensor.detach().flatten()[:_LOOKED]
    steps = some.diff()
    ordered = bool((steps >= 0).all()) or bool((steps <= 0).all())
    return not ordered and some.unique().numel() >= _DISTINCT  # type: ignore[no-untyped-call]


def _counts(buffer: torch.Tensor) -> bool:
    """Whether all elements of a buffer are whole numbers."""
    return bool((buffer == buffer.round()).all())


def _sends_buffers(model: nn.Module) -> bool:
    return isinstance(model, nn.parallel.DistributedDataParallel) and model.broadcast_buffers


def _norms(optimizer: Optimizer) -> dict[int, float]:
    found: dict[int, float] = {}
    for each in list(parameters_of(optimizer))[:_MANY]:
        gradient = each.grad
        part = local_part(gradient, gradient) if gradient is not None else None
        if part is not None and not part.is_sparse and part.numel():
            found[id(each)] = float(part.detach().float().norm())
    return found
