"""ReplayCheckpoint: the state that a program saves in addition to its own checkpoint."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
import torch.distributed as dist

from pytest_trainsafe.core.rank import current_rank
from pytest_trainsafe.core.usage import shown
from pytest_trainsafe.errors import (
    ArgumentError,
    ArgumentTypeError,
    ReplayError,
    TrainsafeWarning,
)
from pytest_trainsafe.judges.replay.checkpoints.events import HeldPart, ReplayCheckpointEvent, file
from pytest_trainsafe.judges.replay.checkpoints.events.file import Header, Segment
from pytest_trainsafe.judges.replay.checkpoints.instrument import first_step
from pytest_trainsafe.judges.replay.checkpoints.instrument.checks import (
    require_one_step,
    require_ours,
    require_same_parts,
    require_valid,
)
from pytest_trainsafe.judges.replay.checkpoints.instrument.first_step import Draws
from pytest_trainsafe.judges.replay.checkpoints.instrument.generators import Source, sources
from pytest_trainsafe.judges.replay.checkpoints.instrument.operations import unrecorded
from pytest_trainsafe.judges.replay.checkpoints.instrument.regenerate import (
    KEEP,
    Calls,
    Keep,
    Regenerated,
)
from pytest_trainsafe.judges.replay.checkpoints.instrument.run import current_run, unrecorded_draws
from pytest_trainsafe.judges.replay.checkpoints.instrument.tree import TreeError, decode, encode

_Made = TypeVar("_Made")

#: The folder of a checkpoint, in the folder of all: `step-00000120`.
_FOLDER = "step-{:08d}"


class Stateful(Protocol):
    """An object whose state a checkpoint saves: a sampler, a loader, a learning rate schedule."""

    def state_dict(self) -> Any:
        """The state: numbers, texts, bytes, tensors, arrays, dicts, lists and tuples."""

    def load_state_dict(self, state: Any) -> object:
        """Restores a state."""


class ReplayCheckpoint:
    """The state of one rank that determines the random numbers a program draws next.

    It always includes the default generators of torch (on the CPU, and on CUDA if in use), of
    NumPy, and of Python's `random`. `program` is a name that distinguishes this program's
    checkpoints from those of other programs. `generators` names further generators:
    torch.Generator, numpy.random.Generator, random.Random. `states` names objects with
    `state_dict` and `load_state_dict`. `root` is the parent of the folders that `folder` returns,
    one for each step; if a pytest run records the program, a folder of that Run is used instead.
    Parameters and optimizer states are not included: they belong to the program's own checkpoint.
    """

    def __init__(
        self,
        program: str,
        *,
        generators: Mapping[str, Any] | None = None,
        states: Mapping[str, Stateful] | None = None,
        root: str | os.PathLike[str] | None = None,
    ) -> None:
        if type(program) is not str or not program:
            raise ArgumentTypeError(
                f"ReplayCheckpoint was given program={shown(program)}; pass a name, such as "
                '"resnet-cifar", that distinguishes the checkpoints of this program from others'
            )
        for argument, given in (("generators", generators), ("states", states)):
            if given is not None and not isinstance(given, Mapping):
                raise ArgumentTypeError(
                    f"ReplayCheckpoint was given {argument}={shown(given)}; pass a dict from names "
                    "to objects"
                )
        self.program = program
        self._named = dict(generators or {})
        self.states = dict(states or {})
        self._root = None if root is None else _path("ReplayCheckpoint", "root", root)
        self._regenerated: dict[str, Regenerated[Any]] = {}
        #: The folder and the hash of the checkpoint whose first step is recorded next, and those
        #: of the loaded checkpoint against which the next step is verified.
        self._to_record: tuple[Path, str] | None = None
        self._to_verify: tuple[Path, str] | None = None
        self._sources()
        for name, state in self.states.items():
            if not (hasattr(state, "state_dict") and hasattr(state, "load_state_dict")):
                raise ArgumentTypeError(
                    f"ReplayCheckpoint was given {shown(state)} as the state {name!r}; a state "
                    "must be an object with state_dict and load_state_dict"
                )

    def regenerates(
        self, name: str, draws: Callable[[], _Made], *, keep: Keep = "last"
    ) -> Regenerated[_Made]:
        """Wraps `draws` as a function whose calls `fast_forward` can repeat after a restart.

        Use `keep="last"` if each call replaces the result of the previous one, such as a new
        permutation for each epoch. Use `keep="all"` if the result depends on every call, as
        when a list is shuffled in place. Checkpoints then save the states of the generators
        before these calls, from which `fast_forward` computes the result again.
        """
        if keep not in KEEP:
            raise ArgumentError(
                f"ReplayCheckpoint.regenerates was given keep={shown(keep)}; pass 'last' if each "
                "call replaces the previous result, or 'all' if the result depends on every call"
            )
        given: tuple[object, object] = name, draws  # from programs, which may not be type-checked
        if not isinstance(given[0], str) or not callable(given[1]):
            raise ArgumentTypeError(
                f"ReplayCheckpoint.regenerates was given {shown(name)} and {shown(draws)}; pass a "
                "name and the function that draws"
            )
        if name in self._regenerated:
            raise ArgumentError(
                f"ReplayCheckpoint.regenerates was given the name {shown(name)} twice; give each "
                "function its own name"
            )
        made = Regenerated(name, draws, keep, self._sources)
        self._regenerated[name] = made
        return made

    # The folders of checkpoints.

    def folder(self, step: int) -> Path:
        """The folder for the checkpoint before `step`.

        Both `save` and the program's own code may write their files there.
        """
        _require_step("folder", step)
        run = current_run()
        root = self._root if run is None else run.root
        if root is None:
            raise ArgumentError(
                "ReplayCheckpoint.folder was called, but the ReplayCheckpoint was created without "
                'a root; pass one: ReplayCheckpoint(..., root="checkpoints")'
            )
        return root / _FOLDER.format(step)

    def resume_folder(self) -> Path | None:
        """The folder of the checkpoint from which this Run is replayed; None if it is no replay."""
        run = current_run()
        return None if run is None else run.resumed

    # Saving and loading.

    def save(self, folder: str | os.PathLike[str], *, step: int, **counters: int) -> Path:
        """Saves this rank's state in `folder`, beside the program's own checkpoint.

        Call it between two steps, on every rank. A restarted program continues with the random
        numbers that follow this call. So call it after all draws of the steps before, such as
        those of an evaluation, and before every draw that a restarted program makes again after
        `load`. `step` is the number of the next step, and `counters` are loop counters, such as
        `epoch=3`. Returns the path of the file. Raises ArgumentTypeError for a state that cannot
        be saved as data.
        """
        _require_step("save", step)
        for name, value in counters.items():
            if type(value) is not int or not -(2**63) <= value < 2**63:
                raise ArgumentTypeError(
                    f"ReplayCheckpoint.save was given {name}={shown(value)}; a counter must be an "
                    "integer of at most 64 bits. Save other values in one of the objects that you "
                    "pass to ReplayCheckpoint as `states`"
                )
        into = _path("ReplayCheckpoint.save", "folder", folder)
        with unrecorded() as recorder:
            path, sizes = self._save(into, step, counters)
            if recorder is not None:
                states = {name: state.state_dict() for name, state in self.states.items()}
                recorder.saved(self.program, states, self.named, step, sizes)
        return path

    def load(self, folder: str | os.PathLike[str]) -> dict[str, int]:
        """Restores this rank's state from `folder`; returns the saved counters and "step".

        Call it last: after the program has loaded its own checkpoint and created every
        object that draws when it is created. Everything is checked before anything is
        changed, and if a `load_state_dict` raises, the states that were loaded before it
        are restored. Raises ReplayError if the checkpoint is damaged, if it was saved by another
        program, schema, rank or world size, with other generators or states, or if its ranks
        saved at different steps.
        """
        folder = _path("ReplayCheckpoint.load", "folder", folder)
        rank, world_size = _place()
        path = file.file_of(folder, rank)
        header, tensors = file.read(path)
        require_ours(path, header, self.program, rank, world_size)
        require_one_step(folder, header)
        found = self._sources(header.kinds)
        require_same_parts(path, header, found, self.states, self._regenerated)
        try:
            generators = {n: decode(node, tensors) for n, node in header.generators.items()}
            states = {n: decode(node, tensors) for n, node in header.states.items()}
            regenerated = {
                name: [
                    Calls(s.calls, {g: decode(n, tensors) for g, n in s.states.items()}, s.after)
                    for s in segments
                ]
                for name, segments in header.regenerated.items()
            }
        except TreeError as error:
            raise ReplayError(f"{path} is damaged: {error}. Load an earlier checkpoint") from error
        require_valid(path, found, generators)
        for calls in (calls for each in regenerated.values() for calls in each):
            if set(calls.after) != set(calls.states):
                raise ReplayError(
                    f"{path} is damaged: a generator has a state before the calls that "
                    "fast_forward repeats and none after them, or the reverse. Load an earlier "
                    "checkpoint"
                )
            require_valid(path, found, calls.states)
        with unrecorded_draws():
            self._load_states(path, states)
            for name, each in regenerated.items():
                self._regenerated[name].calls = each
            for name, state in generators.items():
                found[name].restore(state)
        self._to_record, self._to_verify = None, (folder, header.hash)
        run = current_run()
        if run is not None:
            run.restarted(header.step, header.hash)
            for made in self._regenerated.values():
                made.regenerated = lambda: run.restarted(header.step, header.hash)
        return {"step": header.step, **header.counters}

    def _save(
        self, folder: Path, step: int, counters: dict[str, int]
    ) -> tuple[Path, dict[str, int]]:
        """Writes this rank's file; returns its path and the sizes of what it contains.

        The sizes map the name of each generator, and of each function that was passed to
        `regenerates`, to a number of bytes.
        """
        rank, world_size = _place()
        tensors: dict[str, torch.Tensor] = {}
        found = self._sources()
        header = Header(
            program=self.program,
            world_size=world_size,
            rank=rank,
            step=step,
            counters=counters,
            kinds={name: source.kind for name, source in found.items()},
            generators={
                name: encode(source.read(), f"generators.{name}", tensors)
                for name, source in found.items()
            },
            states={
                name: encode(state.state_dict(), f"states.{name}", tensors)
                for name, state in self.states.items()
            },
            regenerated={
                name: [
                    Segment(
                        calls.count,
                        {
                            generator: encode(state, f"regenerated.{name}.{i}.{generator}", tensors)
                            for generator, state in calls.states.items()
                        },
                        calls.after,
                    )
                    for i, calls in enumerate(made.calls)
                ]
                for name, made in self._regenerated.items()
            },
        )
        header = file.write(folder, header, tensors)
        self._to_record = folder, header.hash
        path = file.file_of(folder, rank)
        regenerated = _parts("regenerated", header.regenerated, tensors)
        run = current_run()
        if run is not None:
            own = folder.parent == run.root and bool(re.fullmatch(r"step-\d{8}", folder.name))
            run.saved(
                ReplayCheckpointEvent(
                    step,
                    folder.name if own else "",
                    header.hash,
                    path.stat().st_size,
                    _parts("generators", header.generators, tensors),
                    _parts("states", header.states, tensors),
                    tuple(
                        HeldPart(name, part.bytes, sum(calls.count for calls in made.calls))
                        for (name, made), part in zip(
                            self._regenerated.items(), regenerated, strict=True
                        )
                    ),
                    tuple(counters),
                )
            )
        parts = (*_parts("generators", header.generators, tensors), *regenerated)
        return path, {part.name: part.bytes for part in parts}

    @contextmanager
    def first_step(self) -> Iterator[None]:
        """Verifies the first step after `load`; enter it around every step.

        The first step after `save` is recorded in the checkpoint's folder, with every
        random number that it draws; the first step after `load` must draw the same. Other
        steps cost nothing. Raises ReplayMismatchError, which names the first draw that
        differs. Warns if the original ended at the checkpoint, so that there is nothing to
        compare with.
        """
        record, verify = self._to_record, self._to_verify
        if record is None and verify is None:
            yield
            return
        draws = Draws()
        try:
            with first_step.recorded(draws):
                yield
        except Exception:
            self._end_first_step(draws, finished=False)
            raise
        self._end_first_step(draws, finished=True)

    def _end_first_step(self, draws: Draws, *, finished: bool) -> None:
        record, verify = self._to_record, self._to_verify
        self._to_record = self._to_verify = None
        rank, found = _place()[0], self._sources()
        if verify is not None:
            folder, digest = verify
            original = first_step.read(first_step.file_of(folder, rank), digest)
            if original is None:
                warnings.warn(
                    f"the first step after loading {folder} is not verified: the run that saved it "
                    "made no step after it in `with replay.first_step():`",
                    TrainsafeWarning,
                    stacklevel=5,
                )
            else:
                replayed = first_step.step_of(digest, draws, found, finished=finished)
                first_step.require_same(original, replayed, folder)
        if record is not None:
            folder, digest = record
            step = first_step.step_of(digest, draws, found, finished=finished)
            first_step.write(first_step.file_of(folder, rank), step)

    @property
    def named(self) -> Mapping[str, Any]:
        """The generators that the program passed."""
        return self._named

    # Generators and states.

    def _sources(self, kinds: Mapping[str, str] | None = None) -> dict[str, Source]:
        if any(name.startswith("torch cuda:") for name in kinds or ()) and (
            torch.cuda.is_available()
        ):
            torch.cuda.init()  # type: ignore[no-untyped-call]
        return sources(self._named)

    def _load_states(self, path: Path, states: Mapping[str, Any]) -> None:
        before: dict[str, Any] = {}
        for name, state in states.items():
            try:
                before[name] = self.states[name].state_dict()
                self.states[name].load_state_dict(state)
            except Exception as error:
                for done, old in before.items():
                    self.states[done].load_state_dict(old)
                raise ReplayError(
                    f"{path}: the object {name!r} of ReplayCheckpoint(states=...) cannot load its "
                    f"saved state ({type(error).__name__}: {error}). Nothing was loaded. Create "
                    "this object as in the program that saved the file"
                ) from error


def _place() -> tuple[int, int]:
    """The rank of this process and the world size."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    me = current_rank()
    return me.rank, me.world_size


def _require_step(method: str, step: object) -> None:
    if type(step) is not int or not 0 <= step <= 2**48:
        raise ArgumentTypeError(
            f"ReplayCheckpoint.{method} was given step={shown(step)}; pass the number of the next "
            "step, counted from 0"
        )


def _path(function: str, name: str, given: object) -> Path:
    if not isinstance(given, str | os.PathLike):
        raise ArgumentTypeError(
            f"{function} was given {name}={shown(given)}; pass the path of a folder, as a str or "
            "a pathlib.Path"
        )
    return Path(given)


def _parts(
    group: str, names: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]
) -> tuple[HeldPart, ...]:
    """The size in bytes of each part in `names`.

    `group` is the kind of the parts: "generators", "states" or "regenerated".  The tensors of a
    part are those whose keys in `tensors` begin with "GROUP.NAME".
    """
    return tuple(
        HeldPart(
            name,
            sum(
                tensor.nbytes
                for key, tensor in tensors.items()
                if key == f"{group}.{name}" or key.startswith(f"{group}.{name}.")
            ),
        )
        for name in names
    )
