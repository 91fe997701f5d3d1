"""A search's time limit does not count the time in which other test runs hold the ranks."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from pytest_trainsafe.judges.compare.localize.budget import Deadline


class Clock:
    """A time that the test sets, and the time in which others held the ranks."""

    def __init__(self) -> None:
        self.now = self.held = 0.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(f"{Deadline.__module__}.time.monotonic", lambda: made.now)
    return made


class Waiting(Future[str]):
    """A future that never ends; each wait for it takes its time on the clock."""

    def __init__(self, clock: Clock, held: bool) -> None:
        super().__init__()
        self.clock, self.held, self.waits = clock, held, 0

    def result(self, timeout: float | None = None) -> str:
        assert timeout is not None
        self.clock.now += timeout
        self.clock.held += timeout if self.held and self.waits < 100 else 0.0
        self.waits += 1
        raise TimeoutError


def test_time_in_which_others_hold_the_ranks_does_not_count(clock: Clock) -> None:
    limit = Deadline(5.0, lambda: clock.held)
    clock.now, clock.held = 7.0, 4.0

    assert limit.spent == 3.0
    assert not limit.passed
    clock.now = 9.0
    assert limit.passed


@pytest.mark.parametrize(("held", "seconds"), [(False, 5.0), (True, 105.0)])
def test_a_wait_ends_with_the_time_that_counts(clock: Clock, held: bool, seconds: float) -> None:
    future = Waiting(clock, held)

    with pytest.raises(TimeoutError):
        Deadline(5.0, lambda: clock.held).wait(future)

    assert clock.now == seconds


def test_a_result_is_returned_and_an_exception_raised(clock: Clock) -> None:
    done, failed = Future[str](), Future[str]()
    done.set_result("trace")
    failed.set_exception(TimeoutError("of the Run itself"))

    assert Deadline(5.0, lambda: 0.0).wait(done) == "trace"
    with pytest.raises(TimeoutError, match="of the Run itself"):
        Deadline(5.0, lambda: 0.0).wait(failed)
