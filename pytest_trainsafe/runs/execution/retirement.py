"""Discards the Runs that tests have released, and closes references that the cache can reopen."""

from __future__ import annotations

from collections.abc import Iterable

from pytest_trainsafe.runs.execution.scheduler import Scheduler
from pytest_trainsafe.trace.run_spec import RunSpec

#: The most finished references that stay open.  Each takes megabytes and a file descriptor, and
#: the cache opens it again without another Run.
MAX_OPEN = 64


class Retirement:
    """The released Runs of a scheduler; the next test may still reuse them.

    Tests that differ only in the recipe's dtype share the upper rungs of their ladders.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._retired: set[RunSpec] = set()

    def retire(self, specs: Iterable[RunSpec]) -> None:
        """Releases Runs; `drop` discards them."""
        self._retired.update(specs)

    def drop(self, keep: set[RunSpec]) -> None:
        """Stops the released Runs that are not in `keep`, and deletes the files of finished ones.

        Runs that were launched ahead, and that no test has requested since, count as released.
        """
        with self._scheduler.lock:
            self._retired |= self._scheduler.ahead
            # A candidate whose Point names no parallel axis may be the reference of other tests.
            shared = {spec for spec in self._retired if spec.trusted and spec.resume is None}
            drop = self._retired - keep - shared
            self._retired &= keep
            for spec in drop:
                self._scheduler.give_up(spec)

    def forget_references(self) -> None:
        """Forgets all but the last requested of the references that the cache can open again."""
        scheduler, cache = self._scheduler, self._scheduler.executor.cache
        with scheduler.lock:
            done = {
                spec: order.run.result().cache_key
                for spec, order in scheduler.scheduled.items()
                if spec.trusted and order.succeeded
            }
            cached = [spec for spec, key in done.items() if key and spec not in scheduler.ahead]
            for spec in cached[:-MAX_OPEN]:
                del scheduler.scheduled[spec]
                key = done.pop(spec)
                if cache is not None and key not in done.values():
                    cache.release(key)
