"""Records that a module runs with parameters changed since the step began, or in evaluation mode.

If a module's inputs agree with the reference but its output does not, its code may still be
right: its parameters may have changed since the step began (through an early optimizer step or a
write on one rank), or it may run in evaluation mode.  Used in the Runs of a localisation only,
since it hashes all parameters.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec
from torch import nn

from pytest_trainsafe.compat.modules import is_batch_norm
from pytest_trainsafe.record.clock import Clock, in_backward
from pytest_trainsafe.record.hooks.activations import dropout_of
from pytest_trainsafe.record.hooks.module_hooks import ModuleHooks
from pytest_trainsafe.record.lines.sites import Sites
from pytest_trainsafe.record.tensors import local_values, tensor_hash
from pytest_trainsafe.record.training.written import Writes
from pytest_trainsafe.trace.facts import Altered, Site
from pytest_trainsafe.trace.writer import RankWriter


class _Value(NamedTuple):
    """The shape and hash of a parameter on this rank."""

    shape: tuple[int, ...]
    hash: str


class Modes:
    """Records the lines that put modules into evaluation mode."""

    def __init__(self, sites: Sites) -> None:
        self._sites = sites
        self._lines: weakref.WeakKeyDictionary[nn.Module, Site] = weakref.WeakKeyDictionary()
        self._switching = False

    def line(self, module: nn.Module) -> Site | None:
        """The source line that put a module into evaluation mode; None if it is not known."""
        return self._lines.get(module)

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Records the lines that put modules into evaluation mode in this context.

        Replaces `nn.Module.train`, which `nn.Module.eval` calls too.
        """
        original = nn.Module.train

        @functools.wraps(original)
        def train(module: nn.Module, mode: bool = True) -> nn.Module:
            if self._switching:  # `train` calls itself for a module's children
                return original(module, mode)
            self._switching = True
            try:
                line = None if mode else self._sites.here("mode")
                for each in module.modules():
                    if line is not None:
                        self._lines[each] = line
                    else:
                        self._lines.pop(each, None)
                return original(module, mode)
            finally:
                self._switching = False

        nn.Module.train = train  # type: ignore[method-assign, assignment]
        try:
            yield
        finally:
            nn.Module.train = original  # type: ignore[method-assign]


class Conditions:
    """Records, once each, which modules of a rank run with changed parameters or for evaluation."""

    def __init__(
        self,
        clock: Clock,
        writer: RankWriter,
        sites: Sites,
        modes: Modes,
        parameters: Iterable[nn.Parameter],
        writes: Writes | None,
    ) -> None:
        self._clock = clock
        self._writer = writer
        self._sites = sites
        self._modes = modes
        self._writes = writes
        self._watched = {id(parameter) for parameter in parameters}
        self._held: dict[str, list[nn.Parameter]] = {}
        self._known: dict[str, list[_Value]] = {}
        self._noted: set[Altered | Site] = set()

    def attach(self, names: Mapping[nn.Module, str], hooks: ModuleHooks) -> None:
        """Checks each module before each of its forwards."""
        for module, name in names.items():
            own = module.parameters(recurse=False)
            # Include parameters that are tied to, and named after, another module's.
            held = [parameter for parameter in own if id(parameter) in self._watched]
            if held:
                self._held[name] = held
            hooks.before(module, name, self._before(module, name))

    def remember(self) -> None:
        """Records the current parameters as those with which the next step begins."""
        self._known = {module: list(map(_value, held)) for module, held in self._held.items()}
        if self._writes is not None:
            self._writes.forget()

    def _before(self, watched: nn.Module, name: str) -> Any:
        def hook(module: nn.Module, args: object, kwargs: object) -> None:
            step, microbatch = self._clock.step, self._clock.open
            recomputes = in_backward()
            if module is not watched or step is None or microbatch is None or recomputes:
                return
            if not module.training and _has_modes(module):
                line = self._modes.line(module) or Site("mode", "")
                self._note(msgspec.structs.replace(line, name=name))
            if self._has_changed(name):
                self._note(Altered(step, microbatch, name))
                for site in self._writes.found() if self._writes is not None else ():
                    self._sites.add(site)

        return hook

    def _has_changed(self, module: str) -> bool:
        """Whether a module's parameters have changed since the step began.

        Ignores a shard that was gathered for the forward (DeepSpeed's stage 3); its shape differs.
        """
        pairs = zip(self._known.get(module, ()), self._held.get(module, ()), strict=False)
        return any(
            known.shape == tuple(local_values(parameter).shape) and known != _value(parameter)
            for known, parameter in pairs
        )

    def _note(self, note: Altered | Site) -> None:
        if note not in self._noted:
            self._noted.add(note)
            self._writer.add(note)


def _has_modes(module: nn.Module) -> bool:
    """Whether a module is known to compute differently in evaluation mode."""
    return is_batch_norm(module) or dropout_of(module) > 0


def _value(parameter: nn.Parameter) -> _Value:
    local = local_values(parameter)
    return _Value(tuple(local.shape), tensor_hash(local))
