"""Checks the invariants that compare ranks while the ranks train.

Each rank writes a small table of each two neighbouring steps (a window) to a folder that all ranks
share.  Rank 0 reads them and judges the second step as soon as every rank has ended it: some rules
ask what was equal before a step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pytest_trainsafe.errors import TraceError
from pytest_trainsafe.judges.learn.check.checker import name_of, variable_of
from pytest_trainsafe.judges.learn.check.offline import Judged
from pytest_trainsafe.judges.learn.check.verifier import CONFIDENCE, watches_of
from pytest_trainsafe.judges.learn.columns.frame import Frame
from pytest_trainsafe.judges.learn.columns.ranks import blocks
from pytest_trainsafe.judges.learn.events.events import Call, Change
from pytest_trainsafe.judges.learn.events.file import TableWriter, read_table
from pytest_trainsafe.judges.learn.invariant import Hypothesis
from pytest_trainsafe.judges.learn.packs.pack import Pack
from pytest_trainsafe.judges.learn.relation import Needs, Relation
from pytest_trainsafe.judges.learn.watch import Violation, Watch

#: The most windows of a rank that wait for rank 0; then nothing more is written.
_WAITING = 64


class RanksVerifier:
    """A Listener, one on each of `world` ranks, that checks invariants that compare ranks.

    `folder` is a folder of their own that all ranks share.  On rank 0, `report` is called with each
    violation, in the step in which it is found; other ranks only write.  `program` and `setting`
    are those of `Verifier`.  What ranks do in steps that are not the same on all of them is not
    judged (`columns.ranks.common_steps`), nor is a step that a rank does not end.
    """

    def __init__(
        self,
        packs: Sequence[Pack],
        relations: Mapping[str, Relation],
        folder: Path,
        rank: int,
        world: int,
        report: Callable[[Violation], None],
        *,
        min_confidence: float = CONFIDENCE,
        program: str = "",
        setting: str = "",
    ) -> None:
        self._relations, self._folder, self._rank, self._world = relations, folder, rank, world
        self._report = report
        self._found: list[Violation] = []
        self._claims: dict[str, dict[Hypothesis, list[Watch]]] = {}
        needs = Needs()
        for watch in watches_of(packs, relations, min_confidence, program, setting):
            relation = relations[watch.claim.relation]
            if relation.several:
                watch.report = self._found.append
                claims = self._claims.setdefault(watch.claim.relation, {})
                claims.setdefault(watch.claim, []).append(watch)
                needs |= relation.needs(watch.claim)
        self._needs = needs
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob(f"rank{rank}.*"):
            old.unlink()  # of a run that did not end
        self._windows: list[_Window] = []
        self._begun = self._written = self._judged = 0
        self._stopped = not self._claims
        self._begin()

    def entered(self, call: Call) -> None:
        """Called when a call begins."""
        if not self._stopped and name_of(call) in self._needs.apis:
            for window in self._windows:
                window.entered(call)

    def left(self, call: Call) -> None:
        """Called when a call has returned or raised."""
        for window in self._windows:
            window.left(call)

    def changed(self, change: Change) -> None:
        """Called when an attribute has changed, or was sampled at the end of a step."""
        if not self._stopped and variable_of(change) in self._needs.variables:
            for window in self._windows:
                window.changed(change)

    def step_ended(self, step: int) -> None:
        """Called when the training step `step` has ended."""
        if self._stopped:
            return
        for window in self._windows:
            window.step_ended(step)
        if self._windows[0].steps == 2:
            self._windows.pop(0).close(self._path(self._rank, self._written))
            self._written += 1
        self._begin()
        if self._path(self._rank, self._written - _WAITING).exists():
            self._stopped = True  # rank 0 has ended, or is far behind
        elif not self._rank:
            self._judge_waiting()

    def _begin(self) -> None:
        partial = self._folder / f"rank{self._rank}.{self._begun}.part"
        self._begun += 1
        self._windows.append(_Window(partial, self._rank))

    def _path(self, rank: int, window: int) -> Path:
        return self._folder / f"rank{rank}.{window}.window"

    def _judge_waiting(self) -> None:
        while not self._stopped:
            paths = [self._path(rank, self._judged) for rank in range(self._world)]
            if not all(path.exists() for path in paths):
                return
            try:
                frames = [Frame(read_table(path, rank)) for rank, path in enumerate(paths)]
            finally:
                for path in paths:
                    path.unlink()
            self._judge(frames)
            self._judged += 1

    def _judge(self, frames: Sequence[Frame]) -> None:
        """Judge the second step of a window, and in the first window both steps."""
        common = [[(key, step) for key, steps in blocks(each) for step in steps] for each in frames]
        if any(each != common[0] for each in common):
            self._stopped = True
            return
        last = common[0][-1][1]
        for name, claims in self._claims.items():
            judged = Judged(claims, step=last if self._judged else None)
            self._relations[name].examples(frames, list(claims), judged)
        found, self._found[:] = sorted(self._found, key=lambda each: each.step or 0), ()
        for violation in found:
            self._report(violation)


class _Window:
    """The table of a step and the next one, as a file."""

    def __init__(self, partial: Path, rank: int) -> None:
        self._partial = partial
        self._writer = TableWriter(partial, rank)
        self._calls: dict[int, Call] = {}
        self.steps = 0

    def entered(self, call: Call) -> None:
        self._calls[id(call)] = call
        self._writer.entered(call)

    def left(self, call: Call) -> None:
        if self._calls.pop(id(call), None) is not None:  # else it began before the window
            self._writer.left(call)

    def changed(self, change: Change) -> None:
        self._writer.changed(change)

    def step_ended(self, step: int) -> None:
        self.steps += 1
        self._writer.step_ended(step)

    def close(self, path: Path) -> None:
        if self._writer.close() is None:
            raise TraceError(f"{self._partial}: two steps have more records than a file may have")
        self._partial.rename(path)
