"""Launches the Runs that tests need and returns their Traces.

There is one Session per pytest process.  It launches Runs ahead in threads; each Run leases slots
for its ranks.  All tests, processes and later pytest runs share one Run of each reference.
"""

from __future__ import annotations

import contextlib
import dataclasses
import glob
import os
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.launch import GroupResult, Task
from pytest_trainsafe.launch.choose import Launchers
from pytest_trainsafe.launch.forkserver.preforked import PreforkedGroup
from pytest_trainsafe.launch.launch_environment import LaunchEnvironment
from pytest_trainsafe.launch.protocol import CountsSlots
from pytest_trainsafe.launch.resources.leases import Leases
from pytest_trainsafe.launch.task import Device, device_of
from pytest_trainsafe.record.assignment import CHECKPOINTS, Assignment
from pytest_trainsafe.record.reads.notes import Notes
from pytest_trainsafe.runs.ahead import NextTest
from pytest_trainsafe.runs.cached.cache import ReferenceCache
from pytest_trainsafe.runs.cached.fingerprint import Key, make_key
from pytest_trainsafe.runs.cached.sources import sources
from pytest_trainsafe.runs.progress.board import TRAINING, WAITING, Board, Enter
from pytest_trainsafe.runs.progress.terminal import with_console
from pytest_trainsafe.runs.requested import Recorded, RequestedRuns, Run
from pytest_trainsafe.runs.specs import Role, as_script, code_of, not_kept, own_files
from pytest_trainsafe.runs.substitute import Making, substitute_of
from pytest_trainsafe.runs.traces import Traces
from pytest_trainsafe.sweep.case import Case
from pytest_trainsafe.trace.reader import Trace
from pytest_trainsafe.trace.run_spec import RunSpec
from pytest_trainsafe.trace.writer import manifest_of, write_manifest

#: The roles, in the order in which their Runs are launched ahead.
ROLES: tuple[Role, ...] = ("reference", "candidate")

#: The most finished references that stay open.  Each takes megabytes and a file descriptor, and
#: the cache opens it again without another Run.
MAX_OPEN = 64


@dataclass(slots=True, eq=False)
class _ScheduledRun:
    """A requested Run, the environment at the time of the request, and the Future of its result.

    The Run waits for the events in `behind` before it joins the queue for slots.  `joined` is set
    when it is in the queue or needs no slots.
    """

    spec: RunSpec
    launch_environment: LaunchEnvironment
    behind: tuple[threading.Event, ...] = ()
    stop: threading.Event = field(default_factory=threading.Event)
    joined: threading.Event = field(default_factory=threading.Event)
    run: Future[Run] = field(init=False)
    #: Shows the Run's stage on the session's board.
    enter: Enter = field(default=lambda stage, behind="": None)

    @property
    def succeeded(self) -> bool:
        """Whether the Run is done and has a result."""
        return self.run.done() and not self.run.cancelled() and self.run.exception() is None


class Session:
    """Runs programs for tests; `basetemp` holds traces and logs.

    `cache_folder` holds the references for later pytest runs; None disables the cache.  If pytest
    runs in several processes (pytest-xdist), `shared` is the folder that all of them use, and
    `controller` is the id of the process that started them; by default there is only this process.
    """

    def __init__(
        self,
        settings: Settings,
        basetemp: Path,
        cache_folder: Path | None = None,
        shared: Path | None = None,
        controller: int | None = None,
    ) -> None:
        self.settings = settings
        self.root = Path(settings.keep_traces or basetemp) / "trainsafe"
        self.notes = dict.fromkeys(
            f"trainsafe_cache_inputs: {pattern} matches no file, so it has no effect"
            for pattern in settings.cache_inputs
            if not pattern.startswith("$")
            and not any(glob.iglob(pattern, recursive=True, include_hidden=True))
        )
        #: The programs in which a Run has recorded decisions.
        self.deciding: set[tuple[str, str]] = set()
        self.launchers = Launchers(
            settings.launcher,
            (shared or basetemp) / "trainsafe",
            controller or os.getpid(),
            lambda text: self.notes.update({text: None}),
            settings.network,
            settings.launchers,
            settings.max_threads,
        )
        self.leases = Leases(settings.slots)
        #: Makes some Runs in another way, if a setting asks for it.
        self.substitute = substitute_of(settings)
        self.cache = ReferenceCache(cache_folder, settings.cache_size) if cache_folder else None
        self.stop = threading.Event()
        self.board = Board()
        self.next: NextTest | None = None
        self._scheduled: dict[RunSpec, _ScheduledRun] = {}
        #: Runs launched ahead that no test has requested yet, and Runs that the current test has
        #: requested.
        self._ahead: set[RunSpec] = set()
        self._asked: set[RunSpec] = set()
        self._last: tuple[threading.Event, ...] = ()
        self._pool = ThreadPoolExecutor(max_workers=4, thread_name_prefix="trainsafe")
        self._retired: set[RunSpec] = set()
        self._parsed: set[tuple[str, str, tuple[str, ...]]] = set()
        self._count = self._kept = 0
        self._lock = threading.Lock()

    def reference(self, case: Case) -> Traces:
        """The Traces of a test's reference Runs."""
        self._asked.clear()
        self._forget_references()
        return Traces(case, "reference", RequestedRuns(self), case.settings.record)

    def candidate(self, case: Case) -> Traces:
        """The Traces of a test's Runs under test."""
        self._asked.clear()
        traces = Traces(case, "candidate", RequestedRuns(self), case.settings.record)
        self._retired |= self._ahead
        self._drop_retired(keep=traces.specs())
        return traces

    def keep(self, trace: Trace) -> Path:
        """Copies a trace to a folder that is kept when its Run is removed; returns the path."""
        with self._lock:
            self._kept += 1
            folder = self.root / "kept" / str(self._kept)
        shutil.copytree(trace.path, folder)
        return folder

    def look_ahead(self) -> None:
        """Launches the Runs of the next test, if it is known and independent of the current test.

        They are discarded unless that test requests them in the same environment.
        """
        following, self.next = self.next, None
        if following is None or following.launch_environment != LaunchEnvironment.now():
            return
        record = following.case.settings.record
        roles = [Traces(following.case, role, RequestedRuns(self), record) for role in ROLES]
        own = [each.joined for each in list(self._scheduled.values()) if not each.joined.is_set()]
        for dtype in following.case.rungs:
            for spec in (spec for role in roles for spec in role.needed(dtype)):
                with self._lock:
                    if spec not in self._scheduled:
                        self._ahead.add(spec)
                        self._schedule(spec, following.launch_environment, behind=own)

    def stop_runs(self) -> None:
        """Stops all Runs in progress, and does not wait."""
        self.stop.set()
        for order in list(self._scheduled.values()):
            order.stop.set()

    def close(self) -> None:
        """Stops all Runs in progress and waits until they have ended."""
        self.stop_runs()
        self._pool.shutdown(wait=True, cancel_futures=True)
        self.launchers.close()
        self._retired |= self._ahead
        self._drop_retired(keep=set())
        if self.cache is not None:
            self.cache.close()

    def run(self, spec: RunSpec) -> Future[Run]:
        """Returns a Future of the Run of a spec; launches the Run if there is none to reuse.

        Reuses the Run that was launched for this spec, if the environment has not changed since
        then, or if the current test has requested the spec before.  Otherwise discards that Run and
        launches a new one.
        """
        now = LaunchEnvironment.now()
        with self._lock:
            self._ahead.discard(spec)
            order = self._scheduled.get(spec)
            if spec not in self._asked:
                self._asked.add(spec)
                if order is not None and order.launch_environment != now:
                    self._give_up(spec)
                    order = None
            if order is not None:  # the Runs are in the order of their last request
                self._scheduled[spec] = self._scheduled.pop(spec)
            return (order or self._schedule(spec, now)).run

    def _schedule(
        self, spec: RunSpec, around: LaunchEnvironment, behind: Sequence[threading.Event] = ()
    ) -> _ScheduledRun:
        if self._is_cached(spec) and (code := code_of(spec, around)) not in self._parsed:
            # Parse in the main thread, as pytest does: before Python 3.13, building syntax trees
            # in two threads at once may fail (`sources._parse`).  The result is cached.
            self._parsed.add(code)
            sources(Path(code[0]), code[1], code[2])
        self.launchers.load(script=as_script(spec))
        order = self._scheduled[spec] = _ScheduledRun(spec, around)
        # A reference waits for no other Run, because other processes may wait for the reference.
        if not spec.trusted:
            # Other Runs join the queue in the order in which they are judged.
            order.behind, self._last = (*self._last, *behind), (order.joined,)
        order.run = self._pool.submit(self._execute, order)
        order.run.add_done_callback(lambda _: order.joined.set())
        return order

    def _give_up(self, spec: RunSpec) -> None:
        """Cancels or stops a Run, or deletes its files if it has finished."""
        self._ahead.discard(spec)
        order = self._scheduled.pop(spec, None)
        if order is None:
            return
        order.stop.set()
        if not order.run.cancel():
            order.run.add_done_callback(self._delete)

    def _delete(self, dropped: Future[Run]) -> None:
        if dropped.exception() is not None or self.settings.keep_traces:
            return
        trace = dropped.result().trace.path
        if self.cache is None or not trace.is_relative_to(self.cache.directory):
            shutil.rmtree(trace.parent, ignore_errors=True)

    def discard(self, traces: Traces) -> None:
        """Releases a test's candidate Runs; the next test may still reuse them.

        Tests that differ only in the recipe's dtype share the upper rungs of their ladders.
        """
        self._retired |= traces.specs()

    def _drop_retired(self, keep: set[RunSpec]) -> None:
        """Stops released Runs that are not in `keep`, and deletes the files of finished ones."""
        with self._lock:
            # A candidate on a single device may be the reference of other tests.
            shared = {spec for spec in self._retired if spec.trusted and spec.resume is None}
            drop = self._retired - keep - shared
            self._retired &= keep
            for spec in drop:
                self._give_up(spec)

    def _forget_references(self) -> None:
        """Forgets all but the last requested of the references that the cache can open again."""
        with self._lock:
            done = {
                spec: order.run.result().cache_key
                for spec, order in self._scheduled.items()
                if spec.trusted and order.succeeded
            }
            cached = [spec for spec, key in done.items() if key and spec not in self._ahead]
            for spec in cached[:-MAX_OPEN]:
                del self._scheduled[spec]
                key = done.pop(spec)
                if self.cache is not None and key not in done.values():
                    self.cache.release(key)

    def directory(self, name: str) -> Path:
        """Creates a new directory for one Run's trace and logs, which only this user can enter."""
        with self._lock:
            while True:
                self._count += 1
                path = self.root / f"{self._count:04d}-{name}"
                self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
                with contextlib.suppress(FileExistsError):  # of another worker, or an earlier run
                    path.mkdir(mode=0o700)
                    return path

    def launch(
        self,
        task: Task,
        timeout: float,
        workdir: Path,
        *,
        script: bool = False,
        stop: threading.Event | None = None,
        environ: Mapping[str, str] | None = None,
        joined: Callable[[], object] = lambda: None,
        enter: Enter = lambda stage, behind="": None,
    ) -> GroupResult:
        """Runs a task once slots for its ranks are free, until `stop` is set or the session closes.

        `environ` is as in `Launcher.run`; `joined` is called when the task is in the queue for
        slots, and `enter` when it waits for other test runs and when it has its slots.
        """
        stop = stop or self.stop
        launcher = self.launchers.of(script=script, stop=self.stop)
        slots = launcher.slots(task) if isinstance(launcher, CountsSlots) else task.world_size
        with (
            PreforkedGroup(launcher, task, workdir, environ) as preforked,
            self.leases.take(
                *(slots, task.device, stop, preforked.begin, joined),
                waits=lambda runs: enter(WAITING, runs),
            ) as lease,
        ):
            enter(TRAINING)
            return preforked.run(lease.env, timeout, stop)

    def _execute(self, order: _ScheduledRun) -> Run:
        spec = order.spec
        role = "rewritten" if spec.rewrite else "perturbed" if spec.perturbation else "run"
        workdir = self.directory(f"{spec.point.id}-{spec.dtype}-{role}")
        device = device_of(spec.device, spec.point.world_size)
        shown = f"{spec.dtype} {'reference' if spec.trusted else role}"
        try:
            with self.board.running(str(spec.point), shown, spec.point.world_size) as order.enter:
                return self._make(order, device, workdir)
        except BaseException:
            if order.stop.is_set() and not self.stop.is_set():  # the Run was discarded
                shutil.rmtree(workdir, ignore_errors=True)
            raise

    def _make(self, order: _ScheduledRun, device: Device, workdir: Path) -> Run:
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

    def _made_by(self, make: Making, order: _ScheduledRun, device: Device, workdir: Path) -> Run:
        """The Run as a substitute makes it, which may record a part of it."""
        seconds: dict[str, float] = {}
        trace = workdir / "trace"

        def record(spec: RunSpec) -> None:
            changed = dataclasses.replace(order, spec=spec)
            seconds.update(self._record(changed, device, workdir, trace).seconds)

        return Run(make(trace, record), seconds)

    def _is_cached(self, spec: RunSpec) -> bool:
        """Whether this Run is stored in the cache."""
        alone = spec.resume is None  # a checkpoint is not part of a cache entry
        return (
            self.cache is not None and not spec.keep and spec.trusted and not spec.repeat and alone
        )

    def _cache_key(self, order: _ScheduledRun, device: Device) -> Key | None:
        """The cache key of this Run; None if it is not cached."""
        spec = order.spec
        if not self._is_cached(spec):
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

    def _checkpoint(self, spec: RunSpec, workdir: Path) -> str:
        """The folder of the checkpoint that a Run saves or continues from; "" for neither."""
        if spec.resume is None:
            return ""
        if spec.resume.of is not None:
            workdir = self._replayed(spec.resume.of).parent
        return str(workdir / "checkpoint")

    def _replayed(self, earlier: RunSpec) -> Path:
        """Waits for the Run `earlier` to end, and returns the folder of its trace.

        A later Run continues from the checkpoint of this Run, or uses its recorded decisions.
        """
        order = self._scheduled.get(earlier)
        return (order.run if order else self.run(earlier)).result().trace.path

    def _record(self, order: _ScheduledRun, device: Device, workdir: Path, trace: Path) -> Recorded:
        spec = order.spec
        write_manifest(trace, manifest_of(spec, device))
        assignment = Assignment(
            spec=spec,
            trace=str(trace),
            device=device,
            replayed=str(self._replayed(spec.replay)) if spec.replay is not None else "",
            checkpoint=self._checkpoint(spec, workdir),
            checkpoints=str(workdir / CHECKPOINTS),
            reads=str(workdir / "reads") if self._is_cached(spec) else "",
        )
        task = Task.of(
            "pytest_trainsafe.record.program:run",
            msgspec.to_builtins(assignment),
            world_size=spec.point.world_size,
            device=device,
            launch_environment=order.launch_environment,
        )
        task = with_console(task, self.settings, spec)
        order.enter(WAITING)
        for joined in order.behind:
            joined.wait()
        result = self.launch(
            task,
            spec.timeout,
            workdir,
            script=as_script(spec),
            stop=order.stop,
            environ={**order.launch_environment.environ, **dict(spec.environ)},
            joined=order.joined.set,
            enter=order.enter,
        )
        result.raise_for_failure(spec.title)
        return Recorded.of(result)
