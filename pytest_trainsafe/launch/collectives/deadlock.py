"""Finds deadlocks: ranks whose ledgers show that they wait in calls that can never complete.

A rank is part of a deadlock only if this is certain: its main thread is inside a call
(`blocked`), and every rank that could still complete the call has ended or is itself part of the
deadlock.  A rank that computes, sleeps or loads data may still make any call, so a rank that waits
for it is not part of a deadlock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from pytest_trainsafe.core.usage import name_ranks
from pytest_trainsafe.launch.collectives.blocked import UNKNOWN, WaitState
from pytest_trainsafe.launch.collectives.collective import Collective

Ledgers = Sequence[Sequence[Collective]]

#: Collectives that no rank can leave before every rank has called them.  Others may return early on
#: some ranks, such as the root of a broadcast, so one absent rank does not prove a wait.
_NEED_ALL = {
    *("init_process_group", "all_reduce", "all_reduce_coalesced", "barrier", "monitored_barrier"),
    *("all_gather", "all_gather_into_tensor", "all_gather_object"),
    *("reduce_scatter", "reduce_scatter_tensor"),
}


class Wait(NamedTuple):
    """A call in which a rank waits, and the `absent` ranks, which have not made a matching call.

    If `needs_all` is set, the call returns only after all of the `absent` ranks have called;
    otherwise one of them may suffice.
    """

    call: Collective
    absent: frozenset[int]
    needs_all: bool


def deadlock(
    ledgers: Ledgers, wait_states: Sequence[WaitState], ended: Sequence[bool]
) -> dict[int, Wait]:
    """For each rank that waits forever, the call in which it waits; empty if there is none.

    `ended` says for each rank whether its program has ended, for whatever reason.
    """
    calls = _Calls(ledgers)
    waits = {}
    for rank, wait_state in enumerate(wait_states):
        if not ended[rank] and (wait := calls.wait(rank, wait_state)) is not None:
            waits[rank] = wait
    ended_ranks = {rank for rank, over in enumerate(ended) if over}
    while hopeful := [
        rank for rank, wait in waits.items() if not _never(wait, ended_ranks | set(waits))
    ]:
        for rank in hopeful:
            del waits[rank]
    return waits


def _never(wait: Wait, dead: set[int]) -> bool:
    """Whether a call never completes if the `dead` ranks make no more calls."""
    return bool(wait.absent & dead) if wait.needs_all else wait.absent <= dead


class _Calls:
    """Counts the calls of every rank, separately for each lane.

    A lane is a series of calls of a rank that are matched in order with calls of other ranks, such
    as the collectives of one process group.
    """

    def __init__(self, ledgers: Ledgers) -> None:
        self._ledgers = ledgers
        self._made: list[Counter[object]] = []
        for ledger in ledgers:
            made: Counter[object] = Counter()
            for call in ledger:
                made[_lane(call)] += 1
            self._made.append(made)

    def wait(self, rank: int, wait_state: WaitState) -> Wait | None:
        """The call in which a rank waits; None if the rank can continue, or if that is not known.

        If the number of the call is unknown, the rank's first unmatched call is assumed.
        """
        ledger = self._ledgers[rank]
        if wait_state.threads or wait_state.call == 0 or wait_state.call > len(ledger):
            return None
        made: Counter[object] = Counter()
        for number, call in enumerate(ledger, 1):
            made[_lane(call)] += 1
            if call.op == "recv":
                made[call.group, call.tag] += 1
            if wait_state.call in (number, UNKNOWN):
                absent = self._absent(rank, call, made)
                if absent:
                    needs_all = call.op in _NEED_ALL or (call.is_p2p and call.peer is not None)
                    return Wait(call, frozenset(absent), needs_all)
                if wait_state.call == number:
                    return None
        return None

    def _absent(self, rank: int, call: Collective, made: Mapping[object, int]) -> set[int]:
        """The ranks that have not made their part of the call.

        `made` counts the rank's calls in each lane, up to and including this call.
        """
        nth = made[_lane(call)]
        if not call.is_p2p:
            return {other for other in call.ranks if self._count(other, _lane(call)) < nth}
        if call.peer is None:
            sends = sum(self._count(other, _lane_of("send", call, rank)) for other in call.ranks)
            return set(call.ranks) - {rank} if sends < made[call.group, call.tag] else set()
        matching = self._count(
            call.peer, _lane_of("recv" if call.op == "send" else "send", call, rank)
        )
        if call.op == "send":
            matching += self._count(call.peer, _lane_of("recv", call, None))
        return {call.peer} if matching < nth else set()

    def _count(self, rank: int, lane: object) -> int:
        return self._made[rank][lane] if 0 <= rank < len(self._made) else 0


def _lane(call: Collective) -> object:
    """Returns the key of the lane to which a call belongs (see `_Calls`).

    The key has the process group; for a send or recv, also the operation, the tag and the peer.
    """
    return _lane_of(call.op, call, call.peer) if call.is_p2p else (call.group, call.ranks)


def _lane_of(op: str, call: Collective, peer: int | None) -> object:
    """Returns the key of the lane of a rank's sends to `peer`, or of its recvs from `peer`.

    `op` is "send" or "recv"; a `peer` of None stands for recvs from any rank.  The process group
    and the tag of the lane are those of `call`.
    """
    return op, call.group, call.tag, peer


def describe(waits: Mapping[int, Wait]) -> list[str]:
    """One sentence that names each waiting rank, its call and the reason; [] without a deadlock."""
    if not waits:
        return []
    ranks = sorted(waits)
    why = _why(waits)
    calls = "; ".join(_waits(rank, waits[rank]) for rank in ranks[:_SHOWN])
    more = f"; and {len(ranks) - _SHOWN} more" if len(ranks) > _SHOWN else ""
    return [f"deadlock: {why}: {calls}{more}"]


def _waits(rank: int, wait: Wait) -> str:
    call = wait.call
    group = "" if call.is_p2p else f" of the group of ranks {list(call.ranks)}"
    return f"rank {rank} waits for {_name_ranks(wait.absent)} in {call}{group}"


def _name_ranks(ranks: Collection[int]) -> str:
    named = name_ranks(sorted(ranks)[:_SHOWN])
    return f"{named} and {len(ranks) - _SHOWN} more" if len(ranks) > _SHOWN else named


#: Maximum number of ranks whose calls the sentence lists.
_SHOWN = 8


def _why(waits: Mapping[int, Wait]) -> str:
    """The most specific reason for the deadlock."""
    for rank, (call, absent, _) in sorted(waits.items()):
        for other in sorted(absent & set(waits)):
            theirs = waits[other].call
            if call.is_p2p and theirs.is_p2p:
                if other == rank:
                    return f"rank {rank} communicates with itself"
                if _would_meet(call, theirs, rank, other):
                    if call.tag != theirs.tag:
                        return (
                            f"the tags of ranks {rank} and {other} do not match "
                            f"({call.tag} and {theirs.tag})"
                        )
                    return f"ranks {rank} and {other} use different groups of the same ranks"
                if call.op == theirs.op and (call.peer, theirs.peer) == (other, rank):
                    verb = "send to" if call.op == "send" else "receive from"
                    return f"ranks {rank} and {other} both {verb} each other first"
            elif not (call.is_p2p or theirs.is_p2p) and call.group != theirs.group:
                if set(call.ranks) == set(theirs.ranks):
                    return f"ranks {rank} and {other} use different groups of the same ranks"
                return f"ranks {rank} and {other} wait in collectives of different groups"
    return "the ranks wait in calls that can never complete"


def _would_meet(call: Collective, theirs: Collective, rank: int, other: int) -> bool:
    """Whether two calls are a send and a recv that differ only in their tags or groups."""
    facing = call.peer in (other, None) and theirs.peer in (rank, None)
    differ = call.tag != theirs.tag or call.group != theirs.group
    return facing and differ and {call.op, theirs.op} == {"send", "recv"}
