"""Records the operations of a training program, and the tensors and generators that each one uses.

An operation is a torch operator or a random draw. `plan` determines from the operations what a
checkpoint must contain (DETrain, section 4). A variable is the memory of a tensor, or a random
number generator; its number is its index in `Recording.variables`. Values in NumPy arrays and
Python objects are not recorded, except for random draws. A regenerated function is a function that
the program passes to `ReplayCheckpoint.regenerates`: a restarted program repeats its draws.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import sampler

from pytest_trainsafe.compat.dispatch_modes import TorchDispatchMode
from pytest_trainsafe.compat.operators import schema_of, tree_flatten_with_path, tree_leaves
from pytest_trainsafe.compat.tensors import address_of, local_part
from pytest_trainsafe.core.rank.state import keep_per_rank
from pytest_trainsafe.errors import ArgumentError
from pytest_trainsafe.judges.replay.rng.instrument import frames
from pytest_trainsafe.judges.replay.rng.instrument.functions import Functions
from pytest_trainsafe.judges.replay.rng.instrument.generators import Generators, generator_of
from pytest_trainsafe.trace.rng.events import LedgerGap
from pytest_trainsafe.trace.rng.states import NumpyState

#: Operators that replace every element of the tensor that they are called on.
_REPLACING = frozenset(
    {
        *("copy_", "fill_", "zero_", "set_", "bernoulli_", "cauchy_", "exponential_"),
        *("geometric_", "log_normal_", "normal_", "random_", "uniform_"),
    }
)

#: The first words of operators that compute the new value of a tensor from its old value.
_FROM_OLD = frozenset(
    {
        *("add_", "sub_", "mul_", "div_", "lerp_", "addcmul_", "addcdiv_"),
        *("_foreach_add_", "_foreach_sub_", "_foreach_mul_", "_foreach_div_", "_foreach_lerp_"),
        *("_foreach_addcmul_", "_foreach_addcdiv_"),
    }
)

#: Operators that update the running statistics that they are passed, without their schemas saying
#: so.  Those that have an argument `training` do so only if it is true.
_BATCH_NORMS = frozenset(
    {
        *("native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm", "batch_norm_update_stats"),
        *("batch_norm_gather_stats", "batch_norm_gather_stats_with_counts"),
    }
)

#: The most operations of a program that is analysed: a few steps of a small model.
MAX_OPERATIONS = 200_000


@dataclass(slots=True)
class Variable:
    """The memory of a tensor, or a random number generator.

    `bytes` is its size, and `text` describes it in reports. `generator` is the name of the
    generator, "" for the memory of a tensor. `parameter` is true for the memory of an
    `nn.Parameter`.
    """

    bytes: int
    text: str
    generator: str = ""
    parameter: bool = False


@dataclass(slots=True)
class Operation:
    """One operation, with the numbers of the variables that it reads, replaces and changes.

    A variable is the memory of a tensor, or a generator; its number is its index in
    `Recording.variables`. `replaces` has the variables that the operation overwrites completely or
    creates, and `changes` those that it writes in part and the generators that it draws from.
    `continues` has the tensors in `changes` whose new value is computed from the whole old value,
    such as running means.
    `line` is the line of the program that ran the operation. `shows` is true if Python code can see
    the result. `regenerating` names the function of `ReplayCheckpoint.regenerates` that ran it, ""
    for none.
    """

    name: str
    line: str
    reads: frozenset[int] = frozenset()
    replaces: frozenset[int] = frozenset()
    changes: frozenset[int] = frozenset()
    shows: bool = False
    regenerating: str = ""
    continues: frozenset[int] = frozenset()


@dataclass(slots=True)
class SavedAt:
    """A ReplayCheckpoint that was saved after `operations` operations and `steps` steps.

    `states` maps the numbers (indices in `Recording.variables`) of the tensors in its states to
    their names, and `generators` has the numbers of its generators. `untraced` names the generators
    that no recorded operation draws from. `sizes` maps the name of each generator to the bytes of
    its state in the checkpoint, and the name of each regenerated function to the bytes of the
    generator states from which its calls are repeated.
    """

    program: str
    step: int
    operations: int
    steps: int
    states: Mapping[int, str]
    generators: frozenset[int]
    untraced: tuple[str, ...]
    sizes: Mapping[str, int]


@dataclass(slots=True)
class Recording:
    """The operations of a program (torch operators and random draws), in order of time.

    Views of tensors are not operations. `variables` has the memory of each tensor and each
    generator that the operations use. `steps` has, for each optimizer step, the number of
    operations up to its end. `checkpoints` has the ReplayCheckpoints that were saved. `files` has a
    pair for each call of torch.save: the number of operations before the call, and a dict that
    maps the index in `variables` of each saved tensor to the tensor's name in the file.
    `unsaved` has source lines that created NumPy generators. These generators are not in the last
    checkpoint, although the program drew from them after it.
    """

    variables: list[Variable] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    checkpoints: list[SavedAt] = field(default_factory=list)
    files: list[tuple[int, Mapping[int, str]]] = field(default_factory=list)
    unsaved: list[str] = field(default_factory=list)


class OperationRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the operations of a program in a Recording.

    Run the program in the context manager that `recording` returns.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.made = Recording()
        #: The name of the function that is being regenerated, or "", and whether recording pauses.
        self.regenerating, self.paused = "", False
        #: The regenerated function that last returned an iterator, for which samplers draw later.
        self.iterating = ""
        self._numpy: list[tuple[Any, str, NumpyState]] = []
        self._unsaved: list[tuple[str, NumpyState, str]] = []
        # A weak reference keeps the address of the memory's owner from being used again.
        self._known: dict[int, tuple[int, StorageWeakRef]] = {}
        self._generators: dict[object, int] = {}
        self._names = Generators()

    @contextmanager
    def recording(self) -> Iterator[Recording]:
        """Records the operations in this context, and yields the Recording that they fill."""
        global _current
        save = torch.save

        def saving(obj: Any, *args: Any, **kwargs: Any) -> Any:
            self.made.files.append((len(self.made.operations), self._named(obj, "")))
            return save(obj, *args, **kwargs)

        with ExitStack() as around:
            around.enter_context(mock.patch.object(torch, "save", saving))
            around.enter_context(Functions(self._function, self._numpy_made).installed())
            hook = register_optimizer_step_post_hook(self._stepped)
            around.callback(hook.remove)
            around.enter_context(self)
            before, _current = _current, self
            try:
                yield self.made
            finally:
                _current = before
                drawn = [line for line, state, text in self._unsaved if state.read() != text]
                self.made.unsaved = drawn

    def saved(
        self,
        program: str,
        states: Mapping[str, Any],
        named: Mapping[str, Any],
        step: int,
        sizes: Mapping[str, int],
    ) -> None:
        """Adds a ReplayCheckpoint that was saved just now, before `step`.

        `states` has the states of its objects, and `named` its generators, by name; `program` and
        `sizes` are those of `SavedAt`.
        """
        made = self.made
        generators, untraced = set(), dict(named)
        for name, generator in named.items():
            number = self._generators.get(_key_of(generator), -1)
            if number >= 0:
                generators.add(number)
                made.variables[number].text = f"generator {name!r}"
                del untraced[name]
        # Default generators are always saved.
        generators |= {n for key, n in self._generators.items() if isinstance(key, str)}
        held = {id(generator) for generator in named.values()}
        self._unsaved = [
            (line, state, state.read())
            for generator, line, state in self._numpy
            if id(generator) not in held
        ]
        made.checkpoints.append(
            SavedAt(
                program,
                step,
                len(made.operations),
                len(made.steps),
                self._named(states, "states"),
                frozenset(generators),
                tuple(untraced),
                sizes,
            )
        )

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = dict(kwargs or {})
        result = func(*args, **kwargs)
        if self.paused or func.namespace == "profiler":
            return result
        running = self._running(func, args, kwargs)
        changed = self._changed(func, args, kwargs) | running
        given = {number: t for t in _tensors((args, kwargs)) if (number := self._number(t)) >= 0}
        after = {self._number(tensor) for tensor in _tensors(result)} - {-1}
        new = frozenset(after - given.keys())
        generator = self._drawn_from(func, args, kwargs)
        name = str(func).removeprefix("aten.")
        shows = "_local_scalar_dense" in name
        if not (new or changed or generator or shows):
            return result  # a view
        word = name.partition(".")[0]
        entire = {n for n in changed if given[n].nbytes >= self.made.variables[n].bytes}
        whole = word in _REPLACING and entire == changed
        reads = frozenset(given) - (changed if whole else frozenset())
        self._add(
            Operation(
                name,
                "",
                reads,
                new | (changed if whole else frozenset()),
                (frozenset() if whole else changed) | generator,
                shows,
                continues=frozenset(entire) if word in _FROM_OLD else running,
            )
        )
        return result

    def _add(self, operation: Operation) -> None:
        if len(self.made.operations) >= MAX_OPERATIONS:
            raise ArgumentError(
                f"replay_plan was given a program of more than {MAX_OPERATIONS} operations; pass "
                "a function that trains a small model with the same variables for a few steps"
            )
        place = frames.place((), skip=3)
        operation.line = place.user or place.at
        operation.regenerating = self.regenerating
        if self.iterating and not self.regenerating and _in_sampler():
            operation.regenerating = self.iterating
        self.made.operations.append(operation)

    def _changed(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> frozenset[int]:
        """The indices in `made.variables` of the tensors that an operator changes in place."""
        changed: set[int] = set()
        for number, argument in enumerate(schema_of(func).arguments):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            value = args[number] if number < len(args) else kwargs.get(argument.name)
            changed.update(self._number(tensor) for tensor in _tensors(value))
        return frozenset(changed - {-1})

    def _running(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> frozenset[int]:
        """The indices in `made.variables` of the running statistics that batch norm updates."""
        if schema_of(func).name.removeprefix("aten::") not in _BATCH_NORMS:
            return frozenset()
        names = [argument.name for argument in schema_of(func).arguments]
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        if not given.get("training", True):
            return frozenset()
        updated = _tensors([given.get("running_mean"), given.get("running_var")])
        return frozenset(map(self._number, updated)) - {-1}

    def _drawn_from(
        self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> frozenset[int]:
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return frozenset()
        generator = generator_of(tuple(args), dict(kwargs))
        if generator is None or isinstance(generator, LedgerGap):
            return frozenset()
        default = generator is torch.default_generator
        place = frames.place((), skip=3)
        name = self._names.name(generator, place.user or place.at)
        key: object = name if default or name.startswith("torch cuda") else _key_of(generator)
        return frozenset({self._generator(key, name, generator)})

    def _generator(self, key: object, name: str, held: object) -> int:
        if key not in self._generators:
            self._generators[key] = len(self.made.variables)
            size = 5056 if isinstance(held, torch.Generator) else 2500
            self.made.variables.append(Variable(size, f"generator {name}", generator=name))
        return self._generators[key]

    def _function(self, generator: str, name: str, call: Any) -> Any:
        number = self._generator(generator, generator, None)
        if not self.paused:
            self._add(Operation(name, "", changes=frozenset({number}), shows=True))
        return call()

    def _numpy_made(self, generator: Any) -> None:
        place = frames.place((), skip=3)
        bits = generator.bit_generator
        self._numpy.append((generator, place.user or place.at, NumpyState(bits)))

    def _stepped(self, *_: object) -> None:
        self.made.steps.append(len(self.made.operations))

    def _number(self, tensor: torch.Tensor) -> int:
        """The index in `made.variables` of a tensor's memory; -1 if the tensor has no memory.

        Memory that was not seen before gets a new Variable.
        """
        try:
            storage = tensor.untyped_storage()
        except (RuntimeError, NotImplementedError):
            return -1
        key = address_of(storage)
        known = self._known.get(key)
        if known is None:
            shape = "x".join(map(str, tensor.shape)) or "scalar"
            text = f"{str(tensor.dtype).removeprefix('torch.')} {shape}"
            self._known[key] = (
                len(self.made.variables),
                StorageWeakRef(storage),  # type: ignore[no-untyped-call]
            )
            self.made.variables.append(Variable(storage.nbytes(), text))
        number = self._known[key][0]
        if isinstance(tensor, nn.Parameter):
            self.made.variables[number].parameter = True
        return number

    def _named(self, values: Any, prefix: str) -> dict[int, str]:
        """Maps the index in `made.variables` of each tensor in nested containers to its path.

        A path has the keys that lead to the tensor, joined by dots, after `prefix`.
        """
        found = {}
        for path, value in tree_flatten_with_path(values)[0]:
            if isinstance(value, torch.Tensor) and (number := self._number(value)) >= 0:
                keys = [str(getattr(key, "key", getattr(key, "idx", key))) for key in path]
                found[number] = ".".join(filter(None, [prefix, *keys]))
        return found


_current: OperationRecorder | None = None
keep_per_rank(__name__, "_current")


@contextmanager
def unrecorded() -> Iterator[OperationRecorder | None]:
    """Excludes the operations in this context, which are not the program's.

    Yields the recorder of the analysed program; None outside of `replay_plan`.
    """
    recorder = _current
    if recorder is None:
        yield None
        return
    before, recorder.paused = recorder.paused, True
    try:
        yield recorder
    finally:
        recorder.paused = before


@contextmanager
def regenerating(name: str) -> Iterator[None]:
    """Marks the operations in this context as those of the regenerated function `name`.

    The calls of a regenerated function (`ReplayCheckpoint.regenerates`) are repeated after a
    restart.
    """
    recorder = _current
    if recorder is None:
        yield
        return
    before, recorder.regenerating = recorder.regenerating, name
    try:
        yield
    finally:
        recorder.regenerating = before


def returned(name: str, made: object) -> None:
    """Notes that `name`, a function of `ReplayCheckpoint.regenerates`, returned `made`.

    If `made` is an iterator, later draws of torch's samplers count as draws of this function.
    """
    if _current is not None and hasattr(made, "__next__"):
        _current.iterating = name


def _in_sampler() -> bool:
    """Whether one of torch's samplers is running."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_filename == sampler.__file__:
            return True
        frame = frame.f_back
    return False


def _key_of(generator: Any) -> object:
    return address_of(generator) if isinstance(generator, torch.Generator) else None


def _tensors(values: Any) -> list[torch.Tensor]:
    parts = (local_part(value, value) for value in tree_leaves(values))
    return [each for each in parts if isinstance(each, torch.Tensor) and not each.is_meta]
