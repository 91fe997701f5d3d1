"""Collectives: the calls of a group's ranks that belong together, and what they wait for.

The n-th call of each rank in a group belong together.  A call that cannot belong to the others is
a mismatch, which ends the group at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from pytest_trainsafe.compat.dispatch_modes import reducing_mode
from pytest_trainsafe.compat.distributed.held_work import below_python, hide, write
from pytest_trainsafe.core.schedule import Moment, Schedule
from pytest_trainsafe.launch.threads.collectives import DisagreementError, Given, Values, results
from pytest_trainsafe.launch.threads.turns import Turns

#: A process group: its name, and the global ranks of its members.
GroupKey = tuple[str, tuple[int, ...]]


def output_moment(schedule: Schedule) -> Moment:
    """When a rank sees results: with exact numbers as late as it must, so that a proof needs waits.

    A value that is read before it is waited for would else be right by the order of the ranks.
    """
    return "wait" if reducing_mode() is not None else schedule.output


@dataclass(slots=True)
class Meeting:
    """One collective; an Event that has happened when every rank has called it."""

    key: GroupKey
    given: dict[int, Given] = field(default_factory=dict)
    lines: dict[int, str] = field(default_factory=dict)
    values: list[Values] | None = None
    received: set[int] = field(default_factory=set)

    @property
    def done(self) -> bool:
        """Whether every rank has called."""
        return len(self.given) == len(self.key[1])

    def __str__(self) -> str:
        members = self.key[1]
        absent = [members[at] for at in range(len(members)) if at not in self.given]
        call = next(iter(self.given.values()))
        lines = "; ".join(f"rank {members[at]} at {line}" for at, line in self.lines.items())
        return f"for ranks {absent} in {call} of the group of ranks {list(members)} ({lines})"


class Meetings:
    """The collectives of all groups."""

    def __init__(self, turns: Turns, schedule: Schedule) -> None:
        self.turns, self._schedule = turns, schedule
        self._open: dict[GroupKey, list[Meeting]] = {}
        self._calls: dict[tuple[GroupKey, int], int] = {}
        self._first: dict[GroupKey, int] = {}

    def call(self, key: GroupKey, at: int, given: Given, line: str) -> Meeting:
        """Enters the call of the rank `at` of a group; returns what it belongs to.

        The last call of a collective completes it.  `line` is where the program calls.  Raises
        Stopped if the call does not fit to those of other ranks.
        """
        number = self._calls.get((key, at), 0)
        self._calls[key, at] = number + 1
        queue = self._open.setdefault(key, [])
        first = self._first.setdefault(key, 0)
        if number - first == len(queue):
            queue.append(Meeting(key))
        meeting = queue[number - first]
        self._check(meeting, at, given, line)
        meeting.given[at] = self._taken(given)
        meeting.lines[at] = line
        if given.is_async and output_moment(self._schedule) == "wait":
            hide(given.inputs, given.outputs)
        if meeting.done:
            assert queue[0] is meeting  # calls of a group complete in order
            queue.pop(0)
            self._first[key] = first + 1
            if self._schedule.taken == "issue" or not any(
                each.is_async for each in meeting.given.values()
            ):
                self._compute(meeting)
                self._write_at_issue(meeting)
        return meeting

    def wait(self, meeting: Meeting, at: int) -> None:
        """Returns when the collective is complete and its result written for the rank `at`."""
        self.turns.wait(meeting, patient=self.is_late and meeting.given[at].is_async)
        if meeting.values is None:
            self._compute(meeting)
        self._receive(meeting, at)

    @property
    def is_late(self) -> bool:
        """Whether asynchronous calls complete as late as they must."""
        return "wait" in (self._schedule.output, self._schedule.taken)

    def _write_at_issue(self, meeting: Meeting) -> None:
        """Writes the results that ranks see before they wait for them."""
        early = output_moment(self._schedule) == "issue"
        for at, given in meeting.given.items():
            if early or not given.is_async:
                self._receive(meeting, at)

    def _check(self, meeting: Meeting, at: int, given: Given, line: str) -> None:
        for other, theirs in meeting.given.items():
            if theirs.signature != given.signature:
                members = meeting.key[1]
                why = (
                    f"collective mismatch: in the group of ranks {list(members)}, rank "
                    f"{members[other]} calls {theirs} at {meeting.lines[other]}, but rank "
                    f"{members[at]} calls {given} at {line}"
                )
                self.turns.stop([why])

    def _taken(self, given: Given) -> Given:
        """A rank's part with its inputs as they are now, if the rank may change them."""
        if not given.is_async and given.op in ("all_reduce", "reduce", "reduce_scatter"):
            return given  # it waits, and reductions write into new tensors
        if given.is_async and self._schedule.taken == "wait":
            return given
        with below_python():
            return replace(given, inputs=[each.clone() for each in given.inputs])

    def _compute(self, meeting: Meeting) -> None:
        given = [meeting.given[at] for at in range(len(meeting.key[1]))]
        try:
            with below_python():
                meeting.values = results(given)
        except DisagreementError as error:
            lines = "; ".join(
                f"rank {meeting.key[1][at]} at {line}" for at, line in sorted(meeting.lines.items())
            )
            self.turns.stop([f"collective mismatch: {error} ({lines})"])
        if self._schedule.taken == "wait":  # outputs may be inputs of others
            with below_python():
                assert meeting.values is not None
                meeting.values = [[each.clone() for each in values] for values in meeting.values]

    def _receive(self, meeting: Meeting, at: int) -> None:
        if at in meeting.received:
            return
        meeting.received.add(at)
        assert meeting.values is not None
        outputs = meeting.given[at].outputs
        with below_python():
            for output, value in zip(outputs, meeting.values[at], strict=True):
                write(output, value)
        if len(meeting.received) == len(meeting.given):
            meeting.values = [[] for _ in meeting.given]
