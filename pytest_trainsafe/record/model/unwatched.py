"""Finds what a program keeps beside the watched model, so that a report says what is not compared.

An average of the weights, a teacher or a critic trains along, but only the model that `ctx.watch`
was given is recorded.  Called by the recorder, after the first step.
"""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from pytest_trainsafe.core.usage import first_few
from pytest_trainsafe.record.hooks.outputs import has_values
from pytest_trainsafe.record.layouts.dtensor import is_dtensor
from pytest_trainsafe.record.model.held import held_here
from pytest_trainsafe.trace.run_spec import RunSpec
from pytest_trainsafe.trace.schema import NoteEvent
from pytest_trainsafe.trace.writer import RankWriter

#: A dict of tensors counts as a copy of the weights if it has this share of their names.
NAMES = 0.5


#: Those of all ranks of this process: what other ranks have is not beside this one's model.
_all: weakref.WeakSet[Beside] = weakref.WeakSet()


class Beside:
    """What a rank's program keeps beside the model that `ctx.watch` was given."""

    def __init__(self, spec: RunSpec, writer: RankWriter) -> None:
        # Runs that only measure need no notes.
        self._notes = not (spec.perturbation or spec.rewrite or spec.record == "sketch")
        sizes = spec.point.sizes
        self._cut = any(sizes[axis] > 1 for axis in sizes if sizes.mesh.role(axis) == "pp")
        self._thread = threading.current_thread()
        others = [
            each for each in _all if each._thread is not self._thread and each._thread.is_alive()
        ]
        #: Whether other ranks run in this process.
        self._shared = bool(others)
        for each in others:
            each._shared = True
        # What exists before the program starts is not the program's.  The garbage collector no
        # longer lists nor visits it: half a million objects, which take as long as some steps.
        # The programs of other ranks may have started, and what they keep must stay listed.
        if not others:
            gc.freeze()
        self._writer = writer
        self._parts: list[nn.Module] = []
        self._weights: Mapping[str, torch.Tensor] = {}
        _all.add(self)

    def watch(
        self, parts: Iterable[tuple[str, nn.Module]], parameters: Mapping[str, torch.Tensor]
    ) -> None:
        """Remembers the watched modules and their parameters."""
        self._parts, self._weights = [part for _, part in parts], parameters

    def weights(self) -> Iterator[tuple[str, list[torch.Tensor]]]:
        """Yields what has weights and is not watched: "the module Ema", and its weights now."""
        gc.collect()  # when garbage goes differs from Run to Run
        found = found_beside(self._parts, self._weights, self._elsewhere(), self._cut, self._held())
        for owner, weights in found:
            name = "a list with the shapes of the weights"
            if isinstance(owner, nn.Module):
                name = f"the module {type(owner).__qualname__}"
            elif isinstance(owner, dict):
                name = "a dict with the names of the weights"
            yield name, [w for w in weights if isinstance(w, torch.Tensor) and has_values(w)]

    def after_step(self, number: int) -> None:
        """After the first step, notes what has weights and is not watched.

        Later the program may have ended, and with it what it kept.
        """
        if number == 0 and self._notes and self._parts:
            found = [
                *added(self._parts, self._weights),
                *unwatched(self._parts, self._weights, self._elsewhere(), self._cut, self._held()),
            ]
            for text in dict.fromkeys(found):
                self._writer.add(NoteEvent("not_compared", text))

    def _elsewhere(self) -> list[torch.Tensor]:
        """The parameters that other ranks of this process watch."""
        return [each for other in _all if other is not self for each in other._weights.values()]

    def _held(self) -> set[int] | None:
        """The objects of this rank's program; None if all of the process are."""
        return held_here() if self._shared else None


def added(parts: Sequence[nn.Module], parameters: Mapping[str, torch.Tensor]) -> Iterator[str]:
    """A sentence about trained parameters that the watched modules got after `ctx.watch`.

    FSDP2 exchanges a sharded parameter for the whole one in the forward; that one is not new.
    """
    known = {id(each) for each in parameters.values()}
    sharded = {name.rpartition(".")[2] for name, each in parameters.items() if is_dtensor(each)}
    new = [
        name
        for part in parts
        for name, each in part.named_parameters()
        if each.requires_grad and id(each) not in known
        if name.rpartition(".")[2] not in sharded
    ]
    if new:
        yield (
            f"parameters that the model got after ctx.watch ({first_few(new)}); "
            "call ctx.watch when the model is complete"
        )


def unwatched(
    parts: Sequence[nn.Module],
    parameters: Mapping[str, torch.Tensor],
    elsewhere: Iterable[torch.Tensor] = (),
    cut: bool = False,
    held: Container[int] | None = None,
) -> Iterator[str]:
    """Sentences about modules and dicts with weights of their own that the recorder does not see.

    `parts` are the watched modules, and `parameters` their parameters by name.  Parameters that are
    watched `elsewhere` do not count, nor do, if `parts` are `cut` from a model for a stage of a
    pipeline, the other modules of that model.  With `held`, only objects with these ids count.
    """
    classes = {type(each) for part in parts for each in part.modules()}
    for each in found_beside(parts, parameters, elsewhere, cut, held):
        count = len(each.weights)
        if isinstance(each.owner, nn.Module):
            which = "another" if type(each.owner) in classes else "the"
            yield (
                f"{_counted(count)} of {which} module {type(each.owner).__qualname__}, which "
                "ctx.watch was not given; pass ctx.watch a list of modules to compare it too"
            )
        elif isinstance(each.owner, dict):
            yield (
                f"{_counted(count)} of a dict that has the names of the model's weights, "
                "such as an average of them; keep them in a module and pass it to ctx.watch"
            )


class Kept(NamedTuple):
    """An object with weights of its own that the recorder does not see."""

    owner: nn.Module | dict[str, Any] | list[Any]
    weights: Sequence[Any]


def found_beside(
    parts: Sequence[nn.Module],
    parameters: Mapping[str, torch.Tensor],
    elsewhere: Iterable[torch.Tensor] = (),
    cut: bool = False,
    held: Container[int] | None = None,
) -> Iterator[Kept]:
    """Yields the modules, dicts and lists of `unwatched`; a list has the shapes of the weights."""
    known = {id(each) for each in parameters.values()}
    memory = {_address(each) for each in (*parameters.values(), *elsewhere)}
    modules, dicts, lists = _objects(held)
    watched = {id(each) for part in parts for each in part.modules()}
    around = {id(each) for each in modules if any(id(m) in watched for m in each.modules())}
    seen = watched | around
    if cut:
        seen |= {id(m) for each in modules if id(each) in around for m in each.modules()}
    others = [each for each in modules if id(each) not in seen]
    inner = {id(m) for each in others for m in each.modules() if m is not each}
    for module in others:
        own = [p for p in module.parameters() if id(p) not in known]
        if id(module) not in inner and own and not memory & set(map(_address, own)):
            yield Kept(module, own)
    for found in dicts:
        shared = [name for name in parameters if name in found]
        if len(shared) >= max(1, NAMES * len(parameters)) and not memory & {
            _address(found[name]) for name in shared
        }:
            yield Kept(found, [found[name] for name in shared])
    shapes = [each.shape for each in parameters.values()]
    trained = [each.shape for each in parameters.values() if each.requires_grad]
    for held in lists:
        held_shapes = [getattr(each, "shape", None) for each in held]
        alike = any(held_shapes == wanted for wanted in (shapes, trained))
        if alike and not memory & set(map(_address, held)):
            yield Kept(held, held)


def _objects(
    held: Container[int] | None,
) -> tuple[list[nn.Module], list[dict[str, Any]], list[list[Any]]]:
    modules: list[nn.Module] = []
    dicts: list[dict[str, Any]] = []
    lists: list[list[Any]] = []
    # There may be many objects: each function that is called for all of them shows.
    are_modules: dict[type, bool] = {}
    for each in gc.get_objects():
        if held is not None and id(each) not in held:
            continue
        kind = type(each)
        if kind is dict:
            if each and _has_tensors_by_name(each):
                dicts.append(each)
        elif kind is list:
            if each and type(each[0]) in (torch.Tensor, nn.Parameter):
                lists.append(each)
        else:
            if kind not in are_modules:
                are_modules[kind] = issubclass(kind, nn.Module)
            if are_modules[kind]:
                modules.append(each)
    return modules, dicts, lists


def _has_tensors_by_name(found: dict[Any, Any]) -> bool:
    for name in found:
        # Names of weights have a module and a leaf, unlike the names in a module's own dicts.
        if type(name) is not str or "." not in name:
            break
        return type(found[name]) in (torch.Tensor, nn.Parameter)
    return False


def _address(tensor: Any) -> tuple[int, int]:
    """Where a tensor's values lie; for tensors without memory, the object itself."""
    try:
        return tensor.untyped_storage().data_ptr(), tensor.storage_offset()
    except (AttributeError, RuntimeError, NotImplementedError):
        return 0, id(tensor)


def _counted(number: int) -> str:
    return "the weight" if number == 1 else f"the {number} weights"
