"""Results: what became of every rank of a group."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec

Status = Literal["ok", "raised", "died", "hung", "stopped"]


class RankResult(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one rank.

    status     meaning
    ok         the program returned `value`
    raised     the program raised: `error_type`, `error`, `traceback`
    died       the process ended without a result: `exit_code`, negative for a signal
    hung       it was still running at the deadline, or waited for what cannot come
    stopped    it was still running when another rank's failure ended the group

    `stdout` and `stderr` are the ends of the files of that name in `folder`.  `stack` is the
    rank's Python stacks when it was stopped.  `suspended` says that it was still running, but
    suspended by a signal such as SIGSTOP.  `ended` counts seconds since the group started,
    None for a rank that had to be ended.
    """

    rank: int
    status: Status
    folder: Path
    value: Any = None
    error_type: str = ""
    error: str = ""
    traceback: str = ""
    exit_code: int | None = None
    stdout: str = ""
    stderr: str = ""
    stack: str = ""
    suspended: bool = False
    last_collective: str = ""
    ended: float | None = None


class GroupResult(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a group of ranks.

    `first_failed` is the rank whose failure came first; None when every rank is ok, or when
    they hung together; `stuck` says that those were ended before `timeout`, since ranks that
    disagree wait for ever.  `mismatches` says where ranks disagreed on their collectives;
    `waiting` says of each process group in which a rank waited where its ranks stood;
    `problem` why the group as a whole came to nothing, if no rank can tell;
    `leftovers` the processes which outlived their rank and were ended with the group.
    `launcher_log` is the end of what torchrun, or the process that forked the ranks, said;
    `hint` tells a user what may help.
    """

    task: str
    folder: Path
    ranks: tuple[RankResult, ...]
    seconds: float
    timeout: float
    stuck: bool = False
    first_failed: int | None = None
    mismatches: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    problem: str = ""
    leftovers: tuple[str, ...] = ()
    launcher_log: str = ""
    hint: str = ""

    @property
    def ok(self) -> bool:
        """Whether every rank returned and all agreed on their collectives."""
        everyone = all(rank.status == "ok" for rank in self.ranks)
        return everyone and not self.mismatches and not self.problem

    @property
    def values(self) -> list[Any]:
        """What the program returned, by rank; raises `GroupFailure` unless all is well."""
        self.raise_for_failure()
        return [rank.value for rank in self.ranks]

    def raise_for_failure(self, what: str = "") -> None:
        """Raise `GroupFailure`, whose message tells what happened, unless all is well.

        `what` says which of several groups this one is.
        """
        if not self.ok:
            from pytest_trainsafe.launch.failure import GroupFailure

            raise GroupFailure(self, what)
