"""Rules between ranks are judged while the ranks train."""

from __future__ import annotations

from pathlib import Path

from pytest_trainsafe.judges.learn.check.offline import check
from pytest_trainsafe.judges.learn.check.ranks import RanksVerifier
from pytest_trainsafe.judges.learn.events.events import Call, Change
from pytest_trainsafe.judges.learn.events.table import replay
from pytest_trainsafe.judges.learn.inference.learn import learn
from pytest_trainsafe.judges.learn.packs.pack import pack_of
from pytest_trainsafe.judges.learn.run import ObservedRun
from pytest_trainsafe.judges.learn.watch import Violation
from tests.support.learn.observed_programs import RULES
from tests.support.learn.ranks_with_epochs import run

Found = set[tuple[str, int | None]]


class _Paced:
    """A Listener that notes what is found in each step."""

    def __init__(self, verifier: RanksVerifier) -> None:
        self.verifier, self.found = verifier, list[Violation]()
        self.when: dict[str, int] = {}

    def entered(self, call: Call) -> None:
        self.verifier.entered(call)

    def left(self, call: Call) -> None:
        self.verifier.left(call)

    def changed(self, change: Change) -> None:
        self.verifier.changed(change)

    def step_ended(self, step: int) -> None:
        self.verifier.step_ended(step)
        for each in self.found:
            self.when.setdefault(each.invariant.id, step)


def live(checked: ObservedRun, folder: Path) -> tuple[Found, set[int]]:
    """The rules that are found broken while rank 0 trains, and in which steps they are found."""
    pack = pack_of("ranks", learn([run("one", [4, 4], [4, 4]), run("two", [3, 5], [3, 5])]))
    paced: _Paced | None = None
    for table in reversed(checked.tables):  # rank 0 trains last
        found: list[Violation] = []
        verifier = RanksVerifier([pack], RULES, folder, table.rank, 2, found.append)
        paced = _Paced(verifier)
        paced.found = found
        replay(table, paced)
    assert paced is not None
    rules = {(each.invariant.id, each.step) for each in paced.found}
    offline = check(checked, [pack], RULES)
    assert rules == {(each.invariant.id, each.step) for each in offline.violations}
    return rules, set(paced.when.values())


def test_ranks_that_drift_are_found_in_the_step(tmp_path: Path) -> None:
    found, when = live(run("drifts", [4, 4], [4, 4], drifts=5), tmp_path)
    assert {step for _, step in found} == {5}
    assert when == {5}
    assert not [*tmp_path.glob("*.window")]


def test_healthy_ranks_break_nothing(tmp_path: Path) -> None:
    assert live(run("healthy", [4, 4], [4, 4]), tmp_path) == (set(), set())


def test_steps_that_are_not_the_same_are_not_compared(tmp_path: Path) -> None:
    assert live(run("uneven", [4, 4], [3, 3], block="join"), tmp_path) == (set(), set())


def test_what_an_earlier_run_left_is_not_judged(tmp_path: Path) -> None:
    (tmp_path / "rank1.0.window").write_bytes(b"not a table")
    found, _ = live(run("drifts", [4, 4], [4, 4], drifts=2), tmp_path)
    assert {step for _, step in found} == {2}
