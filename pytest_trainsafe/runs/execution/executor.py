"""Makes one Run: takes it from the cache of references, or lets ranks record it."""

from __future__ import annotations

import dataclasses
import glob
import shutil
from pathlib import Path

import msgspec

from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.launch import Task, raise_for_failure
from pytest_trainsafe.launch.task import Device, device_of
from pytest_trainsafe.record.assignment import CHECKPOINTS, Assignment
from pytest_trainsafe.record.reads.notes import Notes
from pytest_trainsafe.runs.cached.cache import ReferenceCache
from pytest_trainsafe.runs.cached.fingerprint import Key, make_key
from pytest_trainsafe.runs.execution.folders import Folders
from pytest_trainsafe.runs.execution.groups import Groups
from pytest_trainsafe.runs.execution.run import Recorded, Run
from pytest_trainsafe.runs.execution.scheduled import ScheduledRun
from pytest_trainsafe.runs.progress.board import WAITING, Board
from pytest_trainsafe.runs.progress.terminal import with_console
from pytest_trainsafe.runs.specs import as_script, code_of, not_kept, own_files
from pytest_trainsafe.runs.substitute import Making, substitute_of
from pytest_trainsafe.trace.reader import Trace
from pytest_trainsafe.trace.run_spec import RunSpec
from pytest_trainsafe.trace.writer import manifest_of, write_manifest


class Executor:
    """Makes the Runs of a session, each in the thread that calls `execute`.

    `cache` holds the references for later pytest runs; None disables it.  `notes` has sentences
    that the terminal summary prints once.
    """

    def __init__(
        self,
        settings: Settings,
        folders: Folders,
        groups: Groups,
        cache: ReferenceCache | None,
        notes: dict[str, None],
    ) -> None:
        self.settings = settings
        self.folders = folders
        self.groups = groups
        self.cache = cache
        self.notes = notes
        self.board = Board()
        #: Makes some Runs in another way, if a setting asks for it.
        self.substitute = substitute_of(settings)

    def is_cached(self, spec: RunSpec) -> bool:
        """Whether this Run is stored in the cache."""
        alone = spec.resume is None  # a checkpoint is not part of a cache entry
        return (
            self.cache is not None and not spec.keep and spec.trusted and not spec.repeat and alone
        )

    def execute(self, order: ScheduledRun) -> Run:
        """Makes the Run.  Raises GroupFailure if its ranks do not finish."""
        spec = order.spec
        role = "rewritten" if spec.rewrite else "perturbed" if spec.perturbation else "run"
        workdir = self.folders.new(f"{spec.point.id}-{spec.dtype}-{role}")
        device = device_of(spec.device, spec.point.world_size)
        shown = f"{spec.dtype} {'reference' if spec.trusted else role}"
        try:
            with self.board.running(str(spec.point), shown, spec.point.world_size) as order.enter:
                return self._make(order, device, workdir)
        except BaseException:
            if order.stop.is_set() and not self.groups.stop.is_set():  # the Run was discarded
                shutil.rmtree(workdir, ignore_errors=True)
            raise

    def delete(self, run: Run) -> None:
        """Deletes the files of a Run, unless they are kept or lie in the cache."""
        trace = run.trace.path
        if self.settings.keep_traces:
            return
        if self.cache is None or not trace.is_relative_to(self.cache.directory):
            shutil.rmtree(trace.parent, ignore_errors=True)

    def _make(self, order: ScheduledRun, device: Device, workdir: Path) -> Run:
        instead = self.substitute.instead(order.spec) if self.substitute is not None else None
        if instead is not None:
            return self._made_by(instead, order, device, workdir)
        cache_key = self._cache_key(order, device)
        if self.cache is None or cache_key is None:
            recorded = self._record(order, device, workdir, workdir / "trace")
            return Run(Trace.open(workdir / "trace"), recorded.seconds, files=recorded.files)
        made: list[Recorded] = []

        def make(trace: Path) -> Notes:
            made.append(self._record(order, device, workdir, trace))
            return made[-1].notes

        entry = self.cache.get(
            cache_key,
            make,
            environ=order.launch_environment.environ,
            current=lambda: self._cache_key(order, device),
            own=workdir / "trace",
            stop=order.stop,
        )
        if entry.not_kept:
            self.notes[not_kept(order.spec, entry.not_kept)] = None
        trace = entry.trace
        if not self.settings.keep_traces:
            shutil.rmtree(workdir / CHECKPOINTS, ignore_errors=True)
        if self.settings.keep_traces and trace.path != workdir / "trace":
            trace = Trace.open(shutil.copytree(trace.path, workdir / "trace"))
        if not made:
            return Run(trace, {}, cache_key.digest, entry.reused)
        own = made[-1]
        return Run(trace, own.seconds, cache_key.digest, entry.reused, own.notes, own.files)

    def _made_by(self, make: Making, order: ScheduledRun, device: Device, workdir: Path) -> Run:
        """The Run as a substitute makes it, which may record a part of it."""
        seconds: dict[str, float] = {}
        trace = workdir / "trace"

        def record(spec: RunSpec) -> None:
            changed = dataclasses.replace(order, spec=spec)
            seconds.update(self._record(changed, device, workdir, trace).seconds)

        return Run(make(trace, record), seconds)

    def _cache_key(self, order: ScheduledRun, device: Device) -> Key | None:
        """The cache key of this Run; None if it is not cached."""
        spec = order.spec
        if not self.is_cached(spec):
            return None
        own = (*spec.inputs, *own_files(spec))
        file, module, search = code_of(spec, order.launch_environment)
        return make_key(
            spec.identity(),
            file=file,
            module=module,
            device=device,
            launch_environment=order.launch_environment,
            inputs=(*self.settings.cache_inputs, *map(glob.escape, own)),
            search=search,
        )

    def _record(self, order: ScheduledRun, device: Device, workdir: Path, trace: Path) -> Recorded:
        spec = order.spec
        write_manifest(trace, manifest_of(spec, device))
        assignment = Assignment(
            spec=spec,
            trace=str(trace),
            device=device,
            replayed=str(order.trace_of(spec.replay)) if spec.replay is not None else "",
            checkpoint=_checkpoint(order, workdir),
            checkpoints=str(workdir / CHECKPOINTS),
            reads=str(workdir / "reads") if self.is_cached(spec) else "",
        )
        task = Task.of(
            "pytest_trainsafe.record.program:run",
            msgspec.to_builtins(assignment),
            world_size=spec.point.world_size,
            device=device,
            launch_environment=order.launch_environment,
        )
        task = msgspec.structs.replace(task, schedule=spec.schedule)
        task = with_console(task, self.settings, spec)
        order.enter(WAITING)
        for joined in order.behind:
            joined.wait()
        result = self.groups.launch(
            task,
            spec.timeout,
            workdir,
            script=as_script(spec),
            stop=order.stop,
            environ={**order.launch_environment.environ, **dict(spec.environ)},
            joined=order.joined.set,
            enter=order.enter,
        )
        raise_for_failure(result, spec.title, spec.point)
        return Recorded.of(result)


def _checkpoint(order: ScheduledRun, workdir: Path) -> str:
    """The folder of the checkpoint that a Run saves or continues from; "" for neither."""
    resume = order.spec.resume
    if resume is None:
        return ""
    if resume.of is not None:
        workdir = order.trace_of(resume.of).parent
    return str(workdir / "checkpoint")
