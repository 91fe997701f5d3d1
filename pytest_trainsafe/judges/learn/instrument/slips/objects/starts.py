"""Watches with which weights training begins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from weakref import WeakSet

import torch
from torch import nn
from torch.optim import Optimizer

from pytest_trainsafe.compat.modules import children_of, is_batch_norm, own_parameters
from pytest_trainsafe.judges.learn.instrument.slips.moments import (
    Moment,
    Training,
    Watcher,
    parameters_of,
)

#: Smaller weights may be equal by chance.
_ELEMENTS = 16
#: Weights with fewer distinct elements, of so many that are looked at, are not random.
_DISTINCT, _LOOKED = 8, 1024

#: An eps and a momentum of a norm that are others' settings.
_EPS, _MOMENTUM = 0.1, 0.9

#: Modules of torch that begin with copies of one layer.
_COPIED = (nn.TransformerEncoder, nn.TransformerDecoder)
#: Layers whose weights learn the same if all of them are equal.
_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Embedding)


class Starts(Watcher):
    """Sees the first step of each optimizer, and states that are loaded before it."""

    kinds = ("step", "module_load")

    def __init__(self, training: Training) -> None:
        super().__init__(training)
        self._seen: WeakSet[Optimizer] = WeakSet()
        self._loaded: WeakSet[nn.Module] = WeakSet()

    def entered(self, moment: Moment) -> None:
        if moment.kind == "module_load":
            self._loaded.update(moment.thing.modules())
            return
        optimizer = moment.thing
        if not moment.outermost or optimizer in self._seen:
            return
        self._seen.add(optimizer)
        trained = {
            id(each): each
            for each in parameters_of(optimizer)
            if type(each) is nn.Parameter and each.grad is not None and not optimizer.state
        }
        self._constant(trained)
        self._norms(trained)
        self._repeated(trained)
        self._padding(trained)
        self._alike(trained)

    def _constant(self, trained: Mapping[int, torch.Tensor]) -> None:
        for name, module in self._modules():
            weight = own_parameters(module).get("weight")
            if weight is None or id(weight) not in trained or not isinstance(module, _LAYERS):
                continue
            values = weight.detach()
            if min(values.shape[0], values.numel() // values.shape[0]) > 1 and values.any():
                low, high = values.aminmax()
                if bool(low == high):
                    self.training.slip("constant-weight", f"all of {name}.weight is {float(low)}")
                    return

    def _norms(self, trained: Mapping[int, torch.Tensor]) -> None:
        """Whether the settings of norms are in the wrong order, or of another library."""
        for name, module in self._modules():
            if not any(id(each) in trained for each in own_parameters(module).values()):
                continue
            eps = getattr(module, "eps", None)
            if isinstance(eps, float) and eps >= _EPS:
                self.training.slip("eps-as-momentum", f"{eps} in {name}")
                return
            momentum = getattr(module, "momentum", None) if is_batch_norm(module) else None
            if isinstance(momentum, float) and _MOMENTUM <= momentum < 1:
                self.training.slip("momentum-inverted", f"{momentum} in {name}")
                return

    def _repeated(self, trained: Mapping[int, torch.Tensor]) -> None:
        for name, module in self._modules():
            layers = children_of(module).values() if isinstance(module, nn.Sequential) else ()
            seen: set[int] = set()
            for each in filter(None, layers):
                again = id(each) in seen
                if again and any(id(one) in trained for one in each.parameters()):
                    self.training.slip("layer-repeated", f"{type(each).__name__} in {name}")
                    return
                seen.add(id(each))

    def _padding(self, trained: Mapping[int, torch.Tensor]) -> None:
        """Whether the row of the padding in an embedding is not zero, unless it was loaded."""
        for name, module in self._modules():
            if not isinstance(module, nn.Embedding) or module.padding_idx is None:
                continue
            if id(module.weight) not in trained or module in self._loaded:
                continue
            if bool(module.weight.detach()[module.padding_idx].any()):
                self.training.slip("padding-row", f"row {module.padding_idx} of {name}.weight")
                return

    def _alike(self, trained: Mapping[int, torch.Tensor]) -> None:
        if self.training.rounds or self._loaded:
            return  # weights that were trained may be copied, as for experts
        skipped: set[int] = set()
        names: dict[int, str] = {}
        for name, module in self._modules():
            if isinstance(module, _COPIED):
                skipped.update(id(each) for each in module.parameters())
            elif isinstance(module, nn.Embedding):  # `equal-but-untied` is about these
                skipped.update(id(each) for each in own_parameters(module).values())
            for path, own in own_parameters(module).items():
                names.setdefault(id(own), f"{name}.{path}")
        found: dict[tuple[object, ...], int] = {}
        for key, each in trained.items():
            if each.dim() < 2 or each.numel() < _ELEMENTS or key in skipped:
                continue
            if torch.unique(each.detach().flatten()[:_LOOKED]).numel() < _DISTINCT:
                continue
            digest = self.training.digest(each, False)
            other = found.setdefault((tuple(each.shape), digest), key)
            if digest and other != key:
                pair = f"{names.get(other, 'a parameter')} and {names.get(key, 'another one')}"
                self.training.slip("layers-alike", pair)
                return

    def _modules(self) -> Iterator[tuple[str, nn.Module]]:
        for model, each in self.training.models():
            for path, module in each.named_modules():
                yield f"{model}.{path}".rstrip("."), module
