"""Exchanges what belongs to a rank although the whole process shares it, when another rank runs.

The states of random generators, the default dtype, the environment, standard output and standard
error, modules of the program, and the attributes that `core/rank/state.py` names.  Grad mode,
autocast, torch's modes and the number of threads belong to a thread already.
"""

from __future__ import annotations

import contextlib
import copy
import faulthandler
import functools
import operator
import os
import random
import sys
import warnings
from collections.abc import Callable, Mapping
from types import CellType
from typing import IO, Any, NamedTuple, Protocol

import numpy as np
import torch

from pytest_trainsafe.compat.distributed.rank_worlds import (
    DTENSOR_OPERATORS,
    DTENSOR_RANDOM,
    SET_AROUND,
    WORLD,
    RankWorld,
)
from pytest_trainsafe.core.rank import state as rank_state
from pytest_trainsafe.core.rank.state import ABSENT, Replaced, keep_per_rank
from pytest_trainsafe.launch.threads.imports import ImportNotes
from pytest_trainsafe.launch.threads.modules import ProgramModules

#: What torch and Python keep for a process.
keep_per_rank(WORLD[0], *WORLD[1])
keep_per_rank(DTENSOR_RANDOM[0], *DTENSOR_RANDOM[1])
keep_per_rank(DTENSOR_OPERATORS[0], *DTENSOR_OPERATORS[1], copied=True)
for _module, _names in SET_AROUND:
    keep_per_rank(_module, *_names)
keep_per_rank(
    "torch.nn.modules.module",
    *("_global_backward_pre_hooks", "_global_backward_hooks", "_global_forward_pre_hooks"),
    *("_global_forward_hooks", "_global_forward_hooks_always_called"),
    *("_global_forward_hooks_with_kwargs", "_global_buffer_registration_hooks"),
    "_global_is_full_backward_hook",
    *("_global_module_registration_hooks", "_global_parameter_registration_hooks"),
    copied=True,
)
keep_per_rank(
    "torch.optim.optimizer",
    *("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks"),
    copied=True,
)
keep_per_rank("sys", "stdout", "stderr", "stdin", "excepthook", "breakpointhook")
keep_per_rank("sys", "argv", "path", copied=True)

#: NumPy's stubs do not export its functions for the global generator.
_numpy: Any = np.random

#: torch's own functions: a recorder replaces them while a rank runs.
_set_default_dtype, _get_rng = torch.set_default_dtype, torch.default_generator.get_state


class Part(Protocol):
    """One part of the state of a process."""

    def initial(self) -> Any:
        """The state in which a rank begins."""
        ...

    def save(self) -> Any:
        """The state now."""
        ...

    def restore(self, state: Any) -> None:
        """Makes the process have a state that `save` or `initial` returned."""
        ...


class Exchange:
    """The states of the ranks that do not run; passed to `Turns`."""

    def __init__(self, parts: list[Part]) -> None:
        self._parts = parts
        self._states: dict[int, list[Any]] = {}

    def prepare(self, rank: int, adapt: Callable[[], None]) -> None:
        """Makes the state in which a rank begins: the initial one, changed by `adapt`."""
        before = [part.save() for part in self._parts]
        self._restore([part.initial() for part in self._parts])
        adapt()
        self._states[rank] = [part.save() for part in self._parts]
        self._restore(before)

    def __call__(self, before: int | None, after: int) -> None:
        """Ends the turn of the rank `before`, unless it has ended, and begins that of `after`."""
        if before is not None:
            self._states[before] = [part.save() for part in self._parts]
        self._restore(self._states.pop(after))

    def _restore(self, states: list[Any]) -> None:
        for part, state in zip(self._parts, states, strict=True):
            part.restore(state)


class Generators:
    """The default generators of torch and Python, and NumPy's."""

    def initial(self) -> Any:
        """Reseeds every generator, as in a fresh process."""
        torch.default_generator.seed()
        random.seed()
        _numpy.set_bit_generator(np.random.MT19937())
        return self.save()

    def save(self) -> Any:
        """The states of the generators."""
        return _get_rng(), random.getstate(), _numpy.get_bit_generator()

    def restore(self, state: Any) -> None:
        """Sets the states of the generators."""
        ours, pythons, numpys = state
        torch.default_generator.set_state(ours)
        random.setstate(pythons)
        _numpy.set_bit_generator(numpys)


class _Flags(NamedTuple):
    """torch's settings of a process."""

    dtype: torch.dtype
    deterministic: bool
    warn_only: bool
    precision: str
    attention: tuple[bool, ...]


#: Whether a kernel of attention is allowed, and what allows or forbids it: `sdpa_kernel` does both.
_ATTENTION: tuple[tuple[Callable[[], bool], Callable[[bool], None]], ...] = (
    (torch.backends.cuda.flash_sdp_enabled, torch.backends.cuda.enable_flash_sdp),
    (torch.backends.cuda.mem_efficient_sdp_enabled, torch.backends.cuda.enable_mem_efficient_sdp),
    (torch.backends.cuda.math_sdp_enabled, torch.backends.cuda.enable_math_sdp),
)


class Flags:
    """torch's default dtype, kernels of attention, determinism, precision of float32 products."""

    def __init__(self) -> None:
        self._initial = self.save()

    def initial(self) -> _Flags:
        """The flags of the process before any rank ran."""
        return self._initial

    def save(self) -> _Flags:
        """The flags now."""
        return _Flags(
            torch.get_default_dtype(),
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
            torch.get_float32_matmul_precision(),
            tuple(allowed() for allowed, _ in _ATTENTION),
        )

    def restore(self, flags: _Flags) -> None:
        """Sets the flags that differ."""
        now = self.save()
        if now.dtype is not flags.dtype:
            _set_default_dtype(flags.dtype)
        if now[1:3] != flags[1:3]:
            torch.use_deterministic_algorithms(flags.deterministic, warn_only=flags.warn_only)
        if now.precision != flags.precision:
            torch.set_float32_matmul_precision(flags.precision)
        if now.attention != flags.attention:
            for (_, allow), wanted in zip(_ATTENTION, flags.attention, strict=True):
                allow(wanted)


class Environment:
    """The environment variables of each rank.

    Python keeps them in a dict of bytes behind `os.environ`, which is exchanged as it is, and the C
    library keeps its own, which gets the variables that differ.
    """

    def __init__(self) -> None:
        self._initial = dict(self.save())

    def initial(self) -> dict[bytes, bytes]:
        """The environment of the process before any rank ran."""
        return dict(self._initial)

    def save(self) -> dict[bytes, bytes]:
        """The environment of the current rank."""
        data: dict[bytes, bytes] = os.environ._data  # type: ignore[attr-defined]
        return data

    def restore(self, environ: dict[bytes, bytes]) -> None:
        """Replaces the environment."""
        now = self.save()
        for name in now.keys() - environ.keys():
            os.unsetenv(name)
        for name, value in environ.items():
            if now.get(name) != value:
                os.putenv(name, value)
        os.environ._data = environ  # type: ignore[attr-defined]


class Warnings:
    """The filters of Python's warnings."""

    def __init__(self) -> None:
        self._initial = list(warnings.filters)

    def initial(self) -> list[Any]:
        """The filters of the process before any rank ran."""
        return list(self._initial)

    def save(self) -> list[Any]:
        """The filters of the current rank."""
        return warnings.filters  # type: ignore[return-value]

    def restore(self, filters: list[Any]) -> None:
        """Replaces the filters; Python forgets which warnings it has shown only if they differ."""
        differ = filters != warnings.filters
        warnings.filters = filters
        if differ:
            warnings._filters_mutated()  # type: ignore[attr-defined]


class Output:
    """Where standard output, standard error and the stacks of a crash go: to the rank that runs.

    The descriptors are exchanged, so this is also true of what C++ and child processes write.
    """

    def __init__(self) -> None:
        self._files: tuple[int, int, IO[bytes]] | None = None

    def redirect(self, out: int, err: int, stacks: IO[bytes]) -> None:
        """Sends the output of the current rank to these descriptors, and its crash to `stacks`."""
        self.restore((out, err, stacks))

    def initial(self) -> None:
        """No files: the rank redirects its output before it begins."""
        return

    def save(self) -> tuple[int, int, IO[bytes]] | None:
        """The files of the current rank, after Python has written what it holds back."""
        for stream in (sys.stdout, sys.stderr):
            # A program may replace or close its streams.
            with contextlib.suppress(Exception):
                stream.flush()
        return self._files

    def restore(self, files: tuple[int, int, IO[bytes]] | None) -> None:
        """Sends output to the files of another rank."""
        self._files = files
        if files is not None:
            os.dup2(files[0], 1)
            os.dup2(files[1], 2)
            faulthandler.enable(file=files[2])


class _Values(NamedTuple):
    """The values of one rank, in the order of the lists of `Attributes`, which may grow."""

    in_module: dict[str, list[Any]]
    inside: list[Any]
    replaced: list[Any]


class Attributes:
    """The attributes that `core/rank/state.py` names, of modules and of other objects.

    Ranks take turns some hundred times a second, so what a turn looks at is kept in plain lists,
    to which new attributes are only appended.
    """

    def __init__(self) -> None:
        self._base: dict[tuple[str, str], Any] = {}
        #: The names in `_base` by module: a look-up for each attribute would cost as much again.
        self._in_module: dict[str, list[str]] = {}
        #: Those of classes and functions in modules, whose names have dots.
        self._inside: list[tuple[str, str]] = []
        self._seen: set[tuple[str, tuple[str, ...]]] = set()
        #: What was declared and may have variables that are not in `_base` yet.
        self._pending: list[rank_state.ModuleState] = [*rank_state.modules.values()]
        #: What was replaced, in the order in which it was.
        self._replaced: list[Replaced] = []
        #: The namespace and the name of each, and the places of cells, which have no namespace.
        self._spaces: list[tuple[Mapping[str, Any], str]] = []
        self._cells: list[int] = []
        self._notes = ImportNotes(self._names, lambda module: self._find_base())
        rank_state.on_declared.append(self._find_base)

    def initial(self) -> _Values:
        """The values before any rank ran."""
        self._find_base()
        found = _Values(
            {
                module: [self._fresh((module, name)) for name in names]
                for module, names in self._in_module.items()
            },
            [self._fresh(where) for where in self._inside],
            [],
        )
        module, (world, *_) = WORLD
        found.in_module[module][self._in_module[module].index(world)] = RankWorld()
        return found

    def save(self) -> _Values:
        """The values of the current rank."""
        if any(each.module in sys.modules for each in self._pending):
            self._find_base()
        in_module = {}
        for module, names in self._in_module.items():
            variables = vars(sys.modules[module])
            in_module[module] = [variables.get(name, ABSENT) for name in names]
        inside = [rank_state.read(*_owner(where)) for where in self._inside]
        return _Values(in_module, inside, self._now())

    def restore(self, values: _Values) -> None:
        """Gives the attributes the values of another rank, or those from before any rank ran."""
        for module, names in self._in_module.items():
            variables = vars(sys.modules[module])
            kept = values.in_module.get(module, [])
            for name, value in zip(names, kept, strict=False):
                if variables.get(name, ABSENT) is not value:
                    rank_state.write(sys.modules[module], name, value)
            for name in names[len(kept) :]:
                rank_state.write(sys.modules[module], name, self._fresh((module, name)))
        inside = [*values.inside, *map(self._fresh, self._inside[len(values.inside) :])]
        for where, value in zip(self._inside, inside, strict=True):
            owner, name = _owner(where)
            # To set an attribute of a class empties Python's caches.
            if rank_state.read(owner, name) is not value:
                rank_state.write(owner, name, value)
        now, replaced = self._now(), values.replaced
        if len(replaced) < len(now):
            replaced = [*replaced, *(each.original for each in self._replaced[len(replaced) :])]
        for place, value in enumerate(replaced):
            if now[place] is not value:
                each = self._replaced[place]
                rank_state.write(each.owner, each.name, value)

    def _now(self) -> list[Any]:
        """The present value of everything that was replaced."""
        for each in list(rank_state.replaced.values())[len(self._replaced) :]:
            if isinstance(each.owner, CellType):
                self._cells.append(len(self._replaced))
            self._replaced.append(each)  # nothing is ever taken out
            self._spaces.append((_namespace(each.owner), each.name))
        found = [space.get(name, ABSENT) for space, name in self._spaces]
        for place in self._cells:
            found[place] = self._replaced[place].owner.cell_contents
        return found

    def _names(self) -> set[str]:
        return {each.module for each in rank_state.modules.values()}

    def _fresh(self, where: tuple[str, str]) -> Any:
        """The value with which a rank begins."""
        value = self._base[where]
        return copy.copy(value) if rank_state.is_copied(*where) else _copied(value)

    def _find_base(self) -> None:
        """Notes the values in modules that have been imported, before a rank changes them."""
        for key, each in list(rank_state.modules.items()):
            module = sys.modules.get(each.module)
            unfinished = module is None or each.module in self._notes.unfinished
            if unfinished or (key in self._seen and each.names):
                continue
            for name in each.names or list(vars(module)):
                if (each.module, name) not in self._base and _has_owner((each.module, name)):
                    # A variable that appears later is that of the rank which made it.
                    where = each.module, name
                    value = ABSENT if key in self._seen else rank_state.read(*_owner(where))
                    self._base[where] = copy.copy(value) if each.copied else _copied(value)
                    if "." in name:
                        self._inside.append(where)
                    else:
                        self._in_module.setdefault(each.module, []).append(name)
            self._seen.add(key)
        self._pending = [
            each
            for key, each in rank_state.modules.items()
            if key not in self._seen or not each.names
        ]


def _owner(where: tuple[str, str]) -> tuple[Any, str]:
    """The object that has an attribute, and the attribute's own name."""
    path, name = _path(where[1])
    module: Any = sys.modules[where[0]]
    return module if path is None else path(module), name


@functools.cache
def _path(name: str) -> tuple[Callable[[Any], Any] | None, str]:
    """What finds the object in a module that has an attribute, and the attribute's own name."""
    path, _, last = name.rpartition(".")
    return operator.attrgetter(path) if path else None, last


def _has_owner(where: tuple[str, str]) -> bool:
    """Whether the class or function that has an attribute exists: not in each release of torch."""
    try:
        _owner(where)
    except AttributeError:
        return False
    return True


def _copied(value: Any) -> Any:
    """A copy of a plain container, or of those in a function's defaults; else the value itself."""
    if type(value) is tuple:
        return tuple(map(_copied, value))
    return copy.copy(value) if type(value) in (dict, list, set) else value


def _namespace(owner: Any) -> Mapping[str, Any]:
    """Where an owner keeps its attributes; empty for a cell, which has no `__dict__`."""
    found: Mapping[str, Any] = {} if isinstance(owner, CellType) else vars(owner)
    return found


def parts(output: Output) -> list[Part]:
    """All parts of the state of a process; made before any rank runs."""
    return [
        *(Generators(), Flags(), Environment(), Warnings(), ProgramModules()),
        *(Attributes(), output),
    ]
