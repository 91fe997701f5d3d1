"""Sends and receives: pairs them in order, as gloo does, by group, ranks and tag."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from pytest_trainsafe.launch.threads.meeting import GroupKey, below_python, write
from pytest_trainsafe.launch.threads.turns import Turns


@dataclass(slots=True)
class Message:
    """A send, or a receive; an Event that has happened when it has found its counterpart.

    `rank` is the rank that calls, `peer` the other one, as numbers in the group; None is any rank.
    """

    key: GroupKey
    sends: bool
    rank: int
    peer: int | None
    tag: int
    tensor: torch.Tensor
    line: str
    done: bool = False

    def __str__(self) -> str:
        members = self.key[1]
        peer = "any rank" if self.peer is None else f"rank {members[self.peer]}"
        what = f"send to {peer}" if self.sends else f"recv from {peer}"
        tag = f" with tag {self.tag}" if self.tag else ""
        return f"for {peer} in {what}{tag} of the group of ranks {list(members)} at {self.line}"


class Mail:
    """The sends and receives that wait for their counterparts."""

    def __init__(self, turns: Turns) -> None:
        self.turns = turns
        self._waiting: list[Message] = []

    def post(self, message: Message) -> Message:
        """Enters a send or receive; if its counterpart waits, both happen now.

        A send takes its data now.  Raises Stopped if the sizes differ.
        """
        if message.sends:
            with below_python():
                message.tensor = message.tensor.clone()
        for other in self._waiting:
            if _meet(message, other):
                self._waiting.remove(other)
                self._deliver(*((message, other) if message.sends else (other, message)))
                return message
        self._waiting.append(message)
        return message

    def _deliver(self, send: Message, recv: Message) -> None:
        sent, into, members = send.tensor, recv.tensor, send.key[1]
        if sent.numel() != into.numel() or sent.dtype != into.dtype:
            why = (
                f"collective mismatch: rank {members[send.rank]} sends {tuple(sent.shape)} of "
                f"{sent.dtype} at {send.line}, but rank {members[recv.rank]} receives "
                f"{tuple(into.shape)} of {into.dtype} at {recv.line}"
            )
            self.turns.stop([why])
        with below_python():
            write(into, sent)
        recv.peer = send.rank
        send.done = recv.done = True


def _meet(a: Message, b: Message) -> bool:
    if a.sends == b.sends or a.key != b.key or a.tag != b.tag:
        return False
    send, recv = (a, b) if a.sends else (b, a)
    return send.peer == recv.rank and recv.peer in (None, send.rank)
