"""Sends and receives: pairs them in order, as gloo does, by group, ranks and tag."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from pytest_trainsafe.compat.distributed.held_work import below_python, hide, write
from pytest_trainsafe.core.schedule import Schedule
from pytest_trainsafe.launch.threads.meeting import GroupKey, output_moment
from pytest_trainsafe.launch.threads.turns import Turns


@dataclass(slots=True)
class Message:
    """A send, or a receive; an Event that has happened when it has found its counterpart.

    `rank` is the rank that calls, `peer` the other one, as numbers in the group; None is any rank.
    `partner` is the counterpart, once found.
    """

    key: GroupKey
    sends: bool
    rank: int
    peer: int | None
    tag: int
    tensor: torch.Tensor
    line: str
    partner: Message | None = None
    #: Whether a send's data were taken, and whether they were written for a receive.
    taken: bool = False
    delivered: bool = False

    @property
    def done(self) -> bool:
        """Whether the counterpart was found."""
        return self.partner is not None

    @property
    def call(self) -> str:
        """The call, without the group and the line."""
        peer = "any rank" if self.peer is None else f"rank {self.key[1][self.peer]}"
        tag = f" with tag {self.tag}" if self.tag else ""
        return f"{f'send to {peer}' if self.sends else f'recv from {peer}'}{tag}"

    def __str__(self) -> str:
        members = self.key[1]
        peer = "any rank" if self.peer is None else f"rank {members[self.peer]}"
        return f"for {peer} in {self.call} of the group of ranks {list(members)} at {self.line}"


class Mail:
    """The sends and receives that wait for their counterparts."""

    def __init__(self, turns: Turns, schedule: Schedule) -> None:
        self.turns, self._schedule = turns, schedule
        self._waiting: list[Message] = []

    def post(self, message: Message) -> Message:
        """Enters a send or receive; if its counterpart waits, both have found each other.

        The data are taken and written when the schedule says.  Raises Stopped if the sizes differ.
        """
        if message.sends and self._schedule.taken == "issue":
            with below_python():
                message.tensor = message.tensor.clone()
        if not message.sends and output_moment(self._schedule) == "wait":
            hide((), (message.tensor,))
        for other in self._waiting:
            if _meet(message, other):
                self._waiting.remove(other)
                self._pair(*((message, other) if message.sends else (other, message)))
                return message
        self._waiting.append(message)
        return message

    def wait(self, message: Message) -> None:
        """Returns when a send is taken, or a receive written."""
        late = "wait" in (self._schedule.output, self._schedule.taken)
        self.turns.wait(message, patient=late)
        assert message.partner is not None
        if message.sends:
            self._take(message)
        else:
            self._take(message.partner)
            self._deliver(message)

    def _pair(self, send: Message, recv: Message) -> None:
        sent, into, members = send.tensor, recv.tensor, send.key[1]
        if sent.numel() != into.numel() or sent.dtype != into.dtype:
            why = (
                f"collective mismatch: rank {members[send.rank]} sends {tuple(sent.shape)} of "
                f"{sent.dtype} at {send.line}, but rank {members[recv.rank]} receives "
                f"{tuple(into.shape)} of {into.dtype} at {recv.line}"
            )
            self.turns.stop([why])
        send.partner, recv.partner, recv.peer = recv, send, send.rank
        if self._schedule.taken == "issue":
            send.taken = True
            if output_moment(self._schedule) == "issue":
                self._deliver(recv)

    def _take(self, send: Message) -> None:
        if not send.taken:
            send.taken = True
            with below_python():
                send.tensor = send.tensor.clone()

    def _deliver(self, recv: Message) -> None:
        if recv.delivered:
            return
        recv.delivered = True
        assert recv.partner is not None
        with below_python():
            write(recv.tensor, recv.partner.tensor)


def _meet(a: Message, b: Message) -> bool:
    if a.sends == b.sends or a.key != b.key or a.tag != b.tag:
        return False
    send, recv = (a, b) if a.sends else (b, a)
    return send.peer == recv.rank and recv.peer in (None, send.rank)
