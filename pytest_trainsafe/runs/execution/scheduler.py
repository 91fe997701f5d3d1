"""Launches requested Runs in threads, each once, in the order in which they are needed."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from pytest_trainsafe.launch.launch_environment import LaunchEnvironment
from pytest_trainsafe.runs.cached.fingerprint import find_sources
from pytest_trainsafe.runs.execution.executor import Executor
from pytest_trainsafe.runs.execution.run import Run
from pytest_trainsafe.runs.execution.scheduled import ScheduledRun
from pytest_trainsafe.runs.specs import as_script, code_of
from pytest_trainsafe.trace.run_spec import RunSpec


class Scheduler:
    """The Runs that tests have requested, and those that were launched ahead of a request.

    All tests of a process share one Run of each spec.  `lock` protects `scheduled`, which has the
    Runs in the order of their last request, and `ahead`, the specs of those that no test has
    requested yet.
    """

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        #: The programs in which a Run has recorded decisions.
        self.deciding: set[tuple[str, str]] = set()
        #: The programs and the rungs at which a Run has finished.
        self.finished: set[tuple[str, str, str]] = set()
        self.lock = threading.Lock()
        self.scheduled: dict[RunSpec, ScheduledRun] = {}
        self.ahead: set[RunSpec] = set()
        #: The Runs that the current test has requested.
        self._asked: set[RunSpec] = set()
        self._last: tuple[threading.Event, ...] = ()
        self._pool = ThreadPoolExecutor(max_workers=4, thread_name_prefix="trainsafe")
        self._parsed: set[tuple[str, str, tuple[str, ...]]] = set()

    def begin_test(self) -> None:
        """Forgets what the test before has requested."""
        self._asked.clear()

    def run(self, spec: RunSpec) -> Future[Run]:
        """Returns a Future of the Run of a spec; launches the Run if there is none to reuse.

        Reuses the Run that was launched for this spec, if the environment has not changed since
        then, or if the current test has requested the spec before.  Otherwise discards that Run and
        launches a new one.
        """
        now = LaunchEnvironment.now()
        with self.lock:
            self.ahead.discard(spec)
            order = self.scheduled.get(spec)
            if spec not in self._asked:
                self._asked.add(spec)
                if order is not None and order.launch_environment != now:
                    self.give_up(spec)
                    order = None
            if order is not None:  # the Runs are in the order of their last request
                self.scheduled[spec] = self.scheduled.pop(spec)
            return (order or self._schedule(spec, now)).run

    def run_ahead(
        self, spec: RunSpec, around: LaunchEnvironment, behind: Sequence[threading.Event]
    ) -> None:
        """Launches a Run of the next test, and first the Runs that it follows, unless launched.

        They join the queue for slots after the Runs whose events `behind` has.
        """
        for earlier in spec.follows:
            self.run_ahead(earlier, around, behind)
        with self.lock:
            if spec not in self.scheduled:
                self.ahead.add(spec)
                self._schedule(spec, around, behind)

    def not_joined(self) -> list[threading.Event]:
        """The events of the Runs that are not in the queue for slots yet."""
        orders = list(self.scheduled.values())
        return [order.joined for order in orders if not order.joined.is_set()]

    def give_up(self, spec: RunSpec) -> None:
        """Cancels or stops a Run, or deletes its files if it has finished; needs the lock.

        The unfinished Runs that follow it are given up too: they could only fail.
        """
        self.ahead.discard(spec)
        order = self.scheduled.pop(spec, None)
        if order is None:
            return
        for other, later in list(self.scheduled.items()):
            if spec in other.follows and not later.run.done():
                self.give_up(other)
        order.stop.set()
        if not order.run.cancel():
            order.run.add_done_callback(self._delete)

    def give_up_unfinished(self, specs: Iterable[RunSpec]) -> None:
        """Cancels or stops those of these Runs that have not ended."""
        with self.lock:
            for spec in specs:
                if spec in self.scheduled and not self.scheduled[spec].run.done():
                    self.give_up(spec)

    def stop(self) -> None:
        """Stops all Runs in progress, and does not wait."""
        self.executor.groups.stop.set()
        for order in list(self.scheduled.values()):
            order.stop.set()

    def close(self) -> None:
        """Stops all Runs in progress and waits until they have ended."""
        self.stop()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _schedule(
        self, spec: RunSpec, around: LaunchEnvironment, behind: Sequence[threading.Event] = ()
    ) -> ScheduledRun:
        if self.executor.is_cached(spec) and (code := code_of(spec, around)) not in self._parsed:
            # Parse in the main thread, as pytest does: before Python 3.13, building syntax trees
            # in two threads at once may fail (`sources._parse`).
            self._parsed.add(code)
            find_sources(*code)
        self.executor.groups.launchers.load(
            script=as_script(spec), scheduled=spec.schedule is not None
        )
        # Those that it follows are launched before it, so no two Runs wait for each other.
        earlier = {one: self.scheduled[one].run for one in spec.follows}
        order = self.scheduled[spec] = ScheduledRun(spec, around, earlier)
        # A reference waits for no other Run, because other processes may wait for the reference.
        if not spec.trusted:
            # Other Runs join the queue in the order in which they are judged, also behind
            # references that look for their cache entries and wait for no other Run themselves.
            before = self._references_before()
            order.behind, self._last = (*self._last, *before, *behind), (order.joined,)
        order.run = self._pool.submit(self.executor.execute, order)
        order.run.add_done_callback(lambda _: order.joined.set())
        return order

    def _references_before(self) -> list[threading.Event]:
        """The events of the references that are not in the queue yet and depend on no other Run."""
        return [
            order.joined
            for spec, order in self.scheduled.items()
            if spec.trusted and spec.replay is None and spec.resume is None
            if not order.joined.is_set()
        ]

    def _delete(self, dropped: Future[Run]) -> None:
        if dropped.exception() is None:
            self.executor.delete(dropped.result())
