"""Builds a GroupResult from the supervisor's observations and the ranks' files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pytest_trainsafe.core.usage import name_ranks
from pytest_trainsafe.launch import data
from pytest_trainsafe.launch.collectives.collective import Collective, LedgerError, read_ledger
from pytest_trainsafe.launch.collectives.deadlock import deadlock, describe
from pytest_trainsafe.launch.collectives.flight import read_flight
from pytest_trainsafe.launch.collectives.flight_check import check_flights, missed, waiting
from pytest_trainsafe.launch.collectives.ledger_check import check_ledgers, self_talk
from pytest_trainsafe.launch.files import CANNOT_WRITE, read_end
from pytest_trainsafe.launch.result import GroupResult, RankResult, Status
from pytest_trainsafe.launch.supervise.supervisor import RankState, Supervision
from pytest_trainsafe.launch.task import Task

#: Texts of errors that a rank raises because another rank has gone; never the cause of a failure.
_PEER_LOST = re.compile(
    r"Connection closed by peer|Connection reset by peer|connectFullMesh failed|Broken pipe"
    r"|Socket closed|remote process (has )?exited|failed to recv|recvValue failed"
)

#: How a rank's program had ended, for ranks that did not wait when the group was ended.
_ENDED: dict[Status, str] = {"ok": "finished", "raised": "raised", "died": "died"}

#: Reasons for ending a group that call for an explanation from the ledgers.
_WAITED = ("stuck", "deadline")


def group_result(
    task: Task, folder: Path, supervision: Supervision, timeout: float, startup_timeout: float
) -> GroupResult:
    """The result of the group; compares the ranks' ledgers and flight records."""
    values = [_value(rank) for rank in supervision.ranks]
    unreadable: list[str] = []
    ledgers = [_ledger(rank, unreadable) for rank in supervision.ranks]
    statuses = _statuses(supervision)
    finished = [done for _, done in ledgers]
    flights = [read_flight(rank.files.flight) for rank in supervision.ranks]
    # A rank whose ledger cannot be read would seem to have made no calls.
    found = [] if unreadable else check_ledgers([calls for calls, _ in ledgers], finished)
    unreported = check_flights(flights, finished, [each.group for each in found])
    calls = [made for made, _ in ledgers]
    alone = self_talk(calls, [status in ("raised", "died") for status in statuses])
    wait_states = [rank.wait_state for rank in supervision.ranks]
    ended = [status in _ENDED for status in statuses]
    how_ended = [_ENDED.get(status, "") for status in statuses]
    waits = {} if unreadable else deadlock(calls, wait_states, ended)
    deadlocks = [] if found or supervision.reason not in _WAITED else describe(waits)
    told = () if found or deadlocks else supervision.told
    return GroupResult(
        task=str(task),
        folder=folder,
        ranks=tuple(
            _rank_result(rank, status, supervision, [str(c) for c in ledger[0][-1:]], value)
            for rank, status, ledger, value in zip(
                supervision.ranks, statuses, ledgers, values, strict=True
            )
        ),
        seconds=supervision.ended - supervision.began,
        timeout=timeout,
        stuck=supervision.reason == "stuck",
        first_failed=_first_failed(supervision, statuses),
        mismatches=(*alone, *(each.text for each in found), *unreported, *deadlocks, *told),
        mismatch_at=found[0].at if found and not alone else "",
        waiting=(*unreadable, *waiting(flights, how_ended)),
        missed=tuple(missed(flights, how_ended)),
        problem=_problem(supervision, startup_timeout),
        leftovers=supervision.leftovers,
        launcher_log=supervision.log[-8000:],
    )


def _value(rank: RankState) -> Any:
    """The value that a rank returned; None if it returned none.

    If the value cannot be decoded, returns None and marks the rank as failed.
    """
    if rank.outcome is None or not rank.outcome.value:
        return None
    try:
        return data.decode(rank.outcome.value)
    except data.MalformedDataError as error:
        rank.outcome = rank.files.unreadable(rank.files.result, error)
        return None


def _ledger(rank: RankState, unreadable: list[str]) -> tuple[list[Collective], bool]:
    """A rank's collectives, and whether its program returned.

    If the ledger cannot be read, adds a sentence to `unreadable`; a rank that returned then counts
    as failed.
    """
    returned = rank.outcome is not None and rank.outcome.status == "ok"
    try:
        calls, finished = read_ledger(rank.files.ledger)
        if returned and not calls and not finished:  # Finished is written before the outcome
            raise LedgerError("the record ends early, although the program returned")
    except LedgerError as error:
        unreadable.append(f"the record of rank {rank.rank}'s collectives cannot be read: {error}")
        if returned:
            rank.outcome = rank.files.unreadable(rank.files.ledger, str(error))
        return [], False
    return calls, finished


def _statuses(supervision: Supervision) -> list[Status]:
    statuses = [_status(rank, supervision.reason) for rank in supervision.ranks]
    if supervision.reason == "failed" and not {"raised", "died"} & set(statuses):
        # SIGTERM came from outside: it ended one rank, and torchrun then ended the others.
        exited_at = [
            (rank.exited_at, rank.rank) for rank in supervision.ranks if rank.exited_at is not None
        ]
        statuses[min(exited_at)[1]] = "died"
    return statuses


def _status(rank: RankState, reason: str) -> Status:
    if rank.outcome is not None:
        return rank.outcome.status
    # When a rank fails, torchrun ends the others by SIGTERM, then by SIGKILL.
    if rank.exited_at is not None and not (reason == "failed" and rank.exit_code == -15):
        return "died"
    if rank.exit_code not in (None, -15) and reason in ("failed", "launcher"):
        return "died"
    return "hung" if reason in ("deadline", "startup", "stuck", "suspended") else "stopped"


def _rank_result(
    rank: RankState,
    status: Status,
    supervision: Supervision,
    last_collective: list[str],
    value: Any,
) -> RankResult:
    outcome = rank.outcome
    ended = outcome.at if outcome is not None else rank.exited_at if status == "died" else None
    return RankResult(
        rank=rank.rank,
        status=status,
        folder=rank.files.folder,
        value=value,
        error_type=outcome.error_type if outcome else "",
        error=outcome.error if outcome else "",
        traceback=outcome.traceback if outcome else "",
        exit_code=0 if status == "ok" else rank.exit_code,
        stdout=read_end(rank.files.stdout),
        stderr=read_end(rank.files.stderr),
        stack=read_end(rank.files.stacks, 20_000) if status != "ok" else "",
        suspended=rank.suspended,
        last_collective=last_collective[0] if last_collective else "",
        ended=None if ended is None else ended - supervision.began,
    )


def _first_failed(supervision: Supervision, statuses: list[Status]) -> int | None:
    """The rank that failed first, or None; ranks that only lost a peer come after all others."""
    order = []
    for rank, status in zip(supervision.ranks, statuses, strict=True):
        outcome = rank.outcome
        if status == "raised" and outcome is not None:
            order.append((bool(_PEER_LOST.search(outcome.error)), outcome.at, rank.rank))
        elif status == "died":
            order.append((False, rank.exited_at or supervision.ended, rank.rank))
    return min(order)[2] if order else None


def _problem(supervision: Supervision, startup_timeout: float) -> str:
    if supervision.problem:
        return supervision.problem
    if supervision.reason == "startup":
        late = [rank.rank for rank in supervision.ranks if not rank.pid]
        return f"{name_ranks(late)} did not begin within {startup_timeout:g} s"
    if supervision.reason == "request":
        return "stopped on request"
    if supervision.reason == "launcher" and all(
        rank.outcome is None and rank.exit_code in (None, CANNOT_WRITE)
        for rank in supervision.ranks
    ):
        return "torchrun ended before the ranks did"
    return ""
