"""Watches states that are loaded into models, and initialisations of parameters."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from pytest_trainsafe.compat.tensors import version_of
from pytest_trainsafe.judges.learn.instrument.slips.moments import (
    Moment,
    Training,
    Watcher,
    parameters_of,
)

#: A weight stays like the loaded one if the cosine of the two is so large, in so many elements.
_ALIKE, _SOME = 0.3, 64
#: The share of the weights that makes an initialisation one of the model, and not of a last layer.
_MOST = 0.5


class Loading(Watcher):
    """Sees states that are loaded, initialisations, and steps."""

    kinds = (
        *("file_load", "module_load", "optimizer_load", "init", "step"),
        *("module_state", "scaler_load", "scaler_step"),
    )

    def __init__(self, training: Training) -> None:
        super().__init__(training)
        #: Parameters that were loaded, their versions, and those that an optimizer has updated.
        self._loaded: dict[int, weakref.ref[torch.Tensor]] = {}
        self._versions: dict[int, int] = {}
        self._stepped: dict[int, weakref.ref[torch.Tensor]] = {}
        #: Samples of the loaded parameters, and those that were initialised since.
        self._samples: dict[int, torch.Tensor] = {}
        self._fresh: dict[int, tuple[weakref.ref[torch.Tensor], str]] = {}
        #: States of optimizers from a file that no optimizer has loaded.
        self._waiting: list[Mapping[str, Any]] = []
        #: Whether a file has the state of a gradient scaler that no scaler has loaded.
        self._scale = False
        #: Tensors of states that were taken from models, and the round in which they were.
        self._taken: dict[int, tuple[weakref.ref[torch.Tensor], int]] = {}

    def entered(self, moment: Moment) -> None:
        if moment.kind == "module_load" and moment.outermost:
            moment.given["ties"] = ties_of(moment.thing)
            self._itself(moment)
        elif moment.kind == "scaler_step":
            if self._scale and self._loaded:
                self.training.slip("scaler-not-resumed", "the file has the state of a GradScaler")
            self._scale = False
        elif moment.kind == "step" and moment.outermost:
            self._unused(moment.thing)
            self._begun(moment.thing)
            self._written(moment.thing)
            self._fresh.clear()
        elif moment.kind == "init" and moment.outermost:
            tensor = moment.argument(0, "tensor")
            if isinstance(tensor, torch.Tensor):
                self._fresh[id(tensor)] = weakref.ref(tensor), moment.api

    def _itself(self, moment: Moment) -> None:
        """Whether a state is the model's own, which steps have changed since it was taken."""
        model, state = moment.thing, moment.argument(0, "state_dict")
        if not isinstance(model, nn.Module) or not isinstance(state, Mapping):
            return
        trained = {
            name: each
            for name, each in model.named_parameters()
            if type(each) is nn.Parameter and self._has_stepped(each)
            if isinstance(state.get(name), torch.Tensor)
        }
        for name, each in trained.items():
            taken = self._taken.get(id(state[name]))
            if taken is None or taken[0]() is not state[name] or not each.numel():
                return
            if taken[1] == self.training.rounds or state[name].data_ptr() != each.data_ptr():
                return
        if trained:
            self.training.slip(
                "loaded-itself", f"{next(iter(trained))} of the state is that of the model"
            )

    def _has_stepped(self, parameter: torch.Tensor) -> bool:
        found = self._stepped.get(id(parameter))
        return found is not None and found() is parameter

    def _unused(self, optimizer: Optimizer) -> None:
        """Whether the first optimizer that steps after a checkpoint was read lacks its state."""
        waiting, self._waiting = self._waiting, []
        count = sum(len(group["params"]) for group in optimizer.param_groups)
        if self._versions and not optimizer.state:
            for state in waiting:
                if count == sum(len(group["params"]) for group in state["param_groups"]):
                    if _settings(optimizer.param_groups) != _settings(state["param_groups"]):
                        continue  # another training begins with the weights
                    self.training.slip(
                        "optimizer-not-resumed",
                        f"the file has the state of an optimizer of {count} parameters",
                    )
                    return

    def _begun(self, optimizer: Optimizer) -> None:
        """Whether weights that this optimizer has updated were initialised again.

        Last layers may be, and a program may begin anew with a new optimizer.
        """
        if optimizer not in self.training.stepped:
            return
        known = [each for each in parameters_of(optimizer) if self._has_stepped(each)]
        again = [each for each in known if self._is_fresh(each)]
        if again and not _are_last(again, known):
            self.training.slip(
                "initialised-in-training",
                f"{self._fresh[id(again[0])][1]} of {len(again)} of {len(known)} parameters",
            )

    def _written(self, optimizer: Optimizer) -> None:
        """Whether loaded weights were replaced before the first step.

        Last layers may be.  Weights that are pruned, averaged or merged with others stay like the
        loaded ones.
        """
        parameters = list(parameters_of(optimizer)) if self._versions else []
        versions = {id(each): self._versions.pop(id(each), None) for each in parameters}
        samples = {id(each): self._samples.pop(id(each), None) for each in parameters}
        loaded = [each for each in parameters if versions[id(each)] is not None]
        # Wrappers broadcast the parameters of one rank.
        alone = not (dist.is_available() and dist.is_initialized())
        changed = [
            each
            for each in loaded
            if self._is_fresh(each)
            or (
                alone
                and versions[id(each)] != version_of(each)
                and not _alike(samples[id(each)], each)
            )
        ]
        if changed and not _are_last(changed, loaded):
            self.training.slip(
                "initialised-after-load",
                f"{len(changed)} of {len(loaded)} loaded parameters were replaced after the load",
            )

    def _is_fresh(self, parameter: torch.Tensor) -> bool:
        found = self._fresh.get(id(parameter))
        return found is not None and found[0]() is parameter

    def left(self, moment: Moment) -> None:
        if moment.failed or not moment.outermost:
            return
        if moment.kind == "file_load" and isinstance(moment.result, Mapping):
            self._waiting += [each for each in moment.result.values() if _is_state(each)]
            self._scale |= any(_is_scale(each) for each in moment.result.values())
        elif moment.kind == "scaler_load":
            self._scale = False
        elif moment.kind == "module_state":
            self._take(moment.result)
        elif moment.kind == "optimizer_load":
            state = moment.argument(0, "state_dict")
            if isinstance(state, Mapping):
                own = state.get("param_groups")
                self._waiting = [each for each in self._waiting if each["param_groups"] is not own]
        elif moment.kind == "step":
            for each in parameters_of(moment.thing):
                if each.grad is not None and id(each) not in self._stepped:
                    self._stepped[id(each)] = weakref.ref(each)
        elif moment.kind == "module_load":
            self._fits(moment)
            for first, second in moment.given.get("ties", ()):
                own = dict(moment.thing.named_parameters(remove_duplicate=False))
                if own.get(first) is not own.get(second):
                    self.training.slip("ties-broken", f"{first} and {second} are two tensors now")
                    return

    def _take(self, state: object) -> None:
        tensors = state.values() if isinstance(state, Mapping) else ()
        self._taken = {key: each for key, each in self._taken.items() if each[0]() is not None}
        for each in tensors:
            if isinstance(each, torch.Tensor):
                self._taken[id(each)] = weakref.ref(each), self.training.rounds

    def _fits(self, moment: Moment) -> None:
        model, state = moment.thing, moment.argument(0, "state_dict")
        if not isinstance(model, nn.Module) or not isinstance(state, Mapping):
            return
        own = dict(model.named_parameters(remove_duplicate=False))
        missing = set(getattr(moment.result, "missing_keys", ()))
        for name, each in own.items():
            if name in state and name not in missing:
                self._loaded[id(each)] = weakref.ref(each)
                self._versions[id(each)] = version_of(each)
                if type(each) is nn.Parameter:  # reading a DTensor may communicate
                    self._samples[id(each)] = _sample(each)
                self._fresh.pop(id(each), None)
        wanted = {*own, *(name for name, _ in model.named_buffers())}
        if state and wanted and wanted <= missing:
            self.training.slip(
                "nothing-loaded",
                f"the model has {next(iter(own))!r} and the state has {next(iter(state))!r}"
                if own
                else "no key fits",
            )
        elif missing:
            self._prefixed(state, own, missing)

    def _prefixed(
        self, state: Mapping[str, Any], own: Mapping[str, nn.Parameter], missing: set[str]
    ) -> None:
        """Whether half of the missing parameters are in the state, under another name."""
        wanted = [name for name in own if name in missing]
        unused = [name for name in state if name not in own]
        pairs = [
            (name, other)
            for name in wanted
            for other in unused
            if other.endswith(f".{name}") or name.endswith(f".{other}")
            if getattr(state[other], "shape", None) == own[name].shape
        ]
        # The shapes of all that is missing, in their order, are those of all that is not used.
        shapes = [own[name].shape for name in wanted]
        renamed = shapes == [getattr(state[name], "shape", None) for name in unused]
        if not pairs and renamed and 2 * len(wanted) > len(own) > 2:
            pairs = list(zip(wanted, unused, strict=True))
        if pairs and 2 * len({name for name, _ in pairs}) >= len(wanted):
            self.training.slip(
                "prefix-differs", "the model has {!r} and the state has {!r}".format(*pairs[0])
            )


def _are_last(some: Sequence[torch.Tensor], every: Sequence[torch.Tensor]) -> bool:
    """Whether some weights are those of the last layers of a model, and less than half of all."""
    ids = {id(each) for each in some}
    first = next(at for at, each in enumerate(every) if id(each) in ids)
    rest = [each for each in every[first:] if each.dim() > 1]
    return all(id(each) in ids for each in rest) and _count(some) < _MOST * _count(every)


def _count(tensors: Iterable[torch.Tensor]) -> int:
    return sum(each.numel() for each in tensors)


def _sample(tensor: torch.Tensor) -> torch.Tensor:
    """Some elements of a tensor."""
    flat = tensor.detach().flatten()
    return flat[:: max(1, flat.numel() // _SOME)][:_SOME].double().clone()


def _alike(before: torch.Tensor | None, tensor: torch.Tensor) -> bool:
    """Whether a tensor is still like its sample from before."""
    if before is None or not before.any():
        return before is not None
    return float(torch.cosine_similarity(before, _sample(tensor), dim=0)) >= _ALIKE


def _settings(groups: Iterable[Mapping[str, Any]]) -> list[tuple[object, ...]]:
    """What the author of a training chooses for an optimizer, by group."""
    names = ("weight_decay", "momentum", "betas", "eps")
    return [
        (group.get("initial_lr", group.get("lr")), *(str(group.get(name)) for name in names))
        for group in groups
    ]


def _is_state(thing: object) -> bool:
    """Whether a part of a checkpoint is the state of an optimizer that has stepped."""
    if not isinstance(thing, Mapping) or not thing.get("state"):
        return False
    groups = thing.get("param_groups")
    return isinstance(groups, list) and all(
        isinstance(group, dict) and "params" in group for group in groups
    )


def _is_scale(thing: object) -> bool:
    """Whether a part of a checkpoint is the state of a gradient scaler."""
    return isinstance(thing, Mapping) and {"scale", "growth_factor"} <= thing.keys()


def ties_of(model: object) -> list[tuple[str, str]]:
    """Pairs of names that a model has for one parameter."""
    if not isinstance(model, nn.Module):
        return []
    first: dict[int, str] = {}
    found = []
    for name, each in model.named_parameters(remove_duplicate=False):
        other = first.setdefault(id(each), name)
        if other != name:
            found.append((other, name))
    return found
