"""The checkpoint of one Run: when a program saves or loads it, and in which folder.

It implements the Context's `save` and `load`.  The folder has two
entries:

    program/         the files that the program saved
    manifest.json    the Run that saved them; a Run that loads the checkpoint checks it first
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from pytest_trainsafe.core.point import Point
from pytest_trainsafe.core.untrusted import MALFORMED, read_file
from pytest_trainsafe.core.untrusted import shown as excerpt
from pytest_trainsafe.core.usage import listing
from pytest_trainsafe.judges.replay.rng.instrument.drawing import Drawing
from pytest_trainsafe.launch.loading import load_function
from pytest_trainsafe.launch.task import Function
from pytest_trainsafe.record.clock import ProgramError
from pytest_trainsafe.record.instrument import Instrument, Recording
from pytest_trainsafe.trace.facts import CheckpointEvent
from pytest_trainsafe.trace.run_spec import RunSpec
from pytest_trainsafe.trace.schema import MAX_MANIFEST

FORMAT = "pytest-trainsafe checkpoint"
SCHEMA_VERSION = 1

#: A function that a test passes to `assert_resumable`.  It is called with the folder, and with the
#: model and the optimizer that the program passed to `ctx.watch`.
SaveOrLoad = Callable[[str, Any, Any], object]


class CheckpointManifest(msgspec.Struct, frozen=True, kw_only=True):
    """The Run that saved a checkpoint, and how many steps it had taken by then."""

    format: str = FORMAT
    schema: int = SCHEMA_VERSION
    steps: int
    spec: RunSpec


class Checkpoints(Instrument):
    """Decides when a Run saves or loads its checkpoint, and in which folder.

    A Run without `spec.resume` does neither.
    """

    name = "checkpoint"
    after: ClassVar = {
        "rng": "draws while a checkpoint is saved or loaded are marked in the ledger"
    }

    def __init__(self, recorder: Recording) -> None:
        self._spec = recorder.spec
        self._resume = recorder.spec.resume
        self._folder = Path(recorder.assignment.checkpoint)
        self._clock = recorder.clock
        self._writer = recorder.writer
        self._rng = recorder.instrument(Drawing).ledger
        self._watched: tuple[Any, Any] = None, None
        self._entered: list[int] = []
        self._done = False

    @property
    def _saves(self) -> bool:
        return self._resume is not None and self._resume.of is None

    @property
    def _loads(self) -> bool:
        return self._resume is not None and self._resume.of is not None

    def saving(self) -> Iterator[Path | None]:
        """Implements `ctx.save`: yields the folder to save to, or None if no save is due now."""
        if self._clock.step is not None:
            raise ProgramError(
                f"ctx.save was entered inside step {self._clock.step}; enter it after the `with "
                "ctx.step():` block, before the next step"
            )
        steps = self._clock.steps_done
        self._entered.append(steps)
        now = self._saves and self._resume is not None and self._resume.step == steps
        folder = self._folder / "program" if now and not self._by_function else None
        with self._saving(folder):
            yield folder

    def loading(self) -> Iterator[Path | None]:
        """Implements `ctx.load`: yields the folder to load from, or None if no load is due."""
        with self._loading(self._loads and not self._by_function) as folder:
            yield folder

    def before_watch(self, model: Any, optimizer: Any) -> None:
        """Stores the model and the optimizer that the program passed to `ctx.watch`.

        If the test passed functions to `assert_resumable`, and this Run resumes from a checkpoint,
        also calls the test's load function with the folder, the model and the optimizer.
        """
        self._watched = model, optimizer
        if self._loads and self._by_function:
            with self._loading(True) as folder:
                self._function()(str(folder), model, optimizer)

    def before_step(self) -> None:
        """Raises ProgramError if a resumed Run begins a step before it has loaded a checkpoint."""
        if self._loads and not self._done:
            raise ProgramError(
                f"{self._name} began its first step without loading the checkpoint; enter "
                "`with ctx.load() as folder:` before the first step and load from `folder` unless "
                "it is None, or pass the functions save= and load= to assert_resumable"
            )

    def after_step(self) -> None:
        """Calls the test's save function after a step, if the test has one and a save is due."""
        resume = self._resume
        due = resume is not None and resume.step == self._clock.steps_done
        if due and self._saves and self._by_function:
            folder = self._folder / "program"
            with self._saving(folder):
                self._function()(str(folder), *self._watched)

    def finish(self) -> None:
        """Raises ProgramError if the program has returned without saving the due checkpoint."""
        if not self._saves or self._done or self._resume is None:
            return
        step = self._resume.step
        if self._clock.steps_done < step:
            raise ProgramError(
                f"{self._name} took only {self._clock.steps_done} steps, so no checkpoint could be "
                f"saved after {step} steps; pass a smaller at_step to assert_resumable"
            )
        if not self._entered:
            raise ProgramError(
                f"{self._name} never entered ctx.save, so there is no checkpoint to resume from; "
                "enter `with ctx.save() as folder:` after each step and save into `folder` unless "
                "it is None, or pass the functions save= and load= to assert_resumable"
            )
        raise ProgramError(
            f"{self._name} did not enter ctx.save after {step} steps, only after "
            f"{listing(map(str, self._entered))}; pass one of these numbers to assert_resumable as "
            "at_step, or enter ctx.save after every step"
        )

    @property
    def _name(self) -> str:
        return self._spec.script or self._spec.program

    @property
    def _by_function(self) -> bool:
        return self._resume is not None and bool(self._resume.function)

    def _function(self) -> SaveOrLoad:
        assert self._resume is not None
        return load_function(Function(self._resume.function, self._resume.file))

    @contextmanager
    def _saving(self, folder: Path | None) -> Iterator[None]:
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        with self._rng.during("save"):
            yield
        if folder is not None:
            self._done = True
            self._writer.add(CheckpointEvent("save", self._clock.steps_done))
            if self._writer.rank == 0:
                manifest = CheckpointManifest(steps=self._clock.steps_done, spec=self._spec)
                (self._folder / "manifest.json").write_bytes(msgspec.json.encode(manifest))

    @contextmanager
    def _loading(self, now: bool) -> Iterator[Path | None]:
        first = self._clock.step is None and self._clock.steps_done == self._spec.first_step
        if now and not first:
            raise ProgramError(
                "ctx.load was entered after the first step; enter it before the first step"
            )
        folder = self._checked() if now else None
        with self._rng.during("load"):
            try:
                yield folder
            except Exception as error:
                why = self._not_loaded(error) if now else ""
                if why:
                    raise ProgramError(why) from error
                raise
        if now:
            self._done = True
            self._writer.add(CheckpointEvent("load", self._clock.steps_done))

    def _checked(self) -> Path:
        """The folder to load from.

        Raises ProgramError if its manifest is that of another Run, or if the program saved no file.
        """
        assert self._resume is not None
        assert self._resume.of is not None
        require_checkpoint_of(self._folder, self._resume.of, self._resume.step)
        folder = self._folder / "program"
        if next(folder.iterdir(), None) is None:
            raise ProgramError(
                f"{self._name} saved nothing: it wrote no file into the folder that ctx.save "
                "yielded. Save into that folder or below it"
            )
        return folder

    def _not_loaded(self, error: Exception) -> str:
        """A message for an error while a checkpoint of another Point was loaded.

        "" if the checkpoint is of the same Point; then the error itself is raised.
        """
        assert self._resume is not None
        assert self._resume.of is not None
        saved, here = self._resume.of.point, self._spec.point
        if saved == here:
            return ""
        reason = str(error).strip().partition("\n")[0]
        return (
            f"{self._name} saved a checkpoint at {_at(saved)} and cannot load it at {_at(here)} "
            f"({type(error).__name__}: {excerpt(reason)}); pass assert_resumable a resume_point at "
            "which the checkpoint can be loaded, or save in a form that does not depend on the "
            "layout, as torch.distributed.checkpoint does"
        )


def require_checkpoint_of(folder: Path, spec: RunSpec, steps: int) -> None:
    """Raises ProgramError unless the folder has the checkpoint of this Run after `steps` steps."""
    file = folder / "manifest.json"
    again = "Save the checkpoint again"
    try:
        data = read_file(file, below=folder, max_bytes=MAX_MANIFEST)
        head = msgspec.json.decode(data)
    except (OSError, *MALFORMED) as error:
        raise ProgramError(f"{file} cannot be read ({excerpt(error)}). {again}") from error
    if not isinstance(head, dict) or head.get("format") != FORMAT:
        raise ProgramError(
            f"{folder} is not a checkpoint of a Run: manifest.json does not say "
            f"`format: {FORMAT}`. {again}"
        )
    if head.get("schema") != SCHEMA_VERSION:
        raise ProgramError(
            f"{file} has schema version {excerpt(head.get('schema'), 40)}, and this "
            f"pytest-trainsafe reads version {SCHEMA_VERSION}. {again}"
        )
    try:
        found = msgspec.json.decode(data, type=CheckpointManifest)
    except MALFORMED as error:
        raise ProgramError(f"{file} is damaged: {excerpt(error)}. {again}") from error
    if found.spec.identity() == spec.identity() and found.steps == steps:
        return
    wanted = dict(zip(_WHAT, _values(spec, steps), strict=True))
    differ = [
        f"{name} {excerpt(was, 100)} instead of {wanted[name]}"
        for name, was in zip(_WHAT, _values(found.spec, found.steps), strict=True)
        if was != wanted[name]
    ]
    raise ProgramError(
        f"{folder} is not loaded, because it is the checkpoint of another Run, saved with "
        f"{listing(differ) or 'other settings'}. {again}"
    )


_WHAT = ("program", "arguments", "Point", "dtype", "seed", "steps")


def _values(spec: RunSpec, steps: int) -> tuple[str, ...]:
    name = spec.script or spec.program
    return name, spec.arguments, _at(spec.point), spec.dtype, str(spec.seed), str(steps)


def _at(point: Point) -> str:
    return str(point)
