"""The results of a group and of each of its ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec

Status = Literal["ok", "raised", "died", "hung", "stopped"]


class RankResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one rank.

    status     meaning
    ok         the program returned `value`
    raised     the program raised an exception: `error_type`, `error`, `traceback`
    died       the process ended without a result; `exit_code` is negative if a signal ended it
    hung       the rank was still running at the deadline, or stuck in a call that cannot complete
    stopped    the rank was still running when another rank's failure ended the group

    `stdout` and `stderr` are the ends of the files of that name in `folder`.  `stack` holds the
    Python stacks of a rank that did not return.  `suspended` is set if the rank was still running
    but suspended by a signal such as SIGSTOP.  `last_collective` describes the last collective that
    the rank called, "" for none.  `ended` is in seconds since the group started, None for a rank
    that had to be ended.
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
    """The result of a group of ranks.

    `task` names the program.  `folder` holds the group's files.  `seconds` is how long the group
    ran, and `timeout` how long it was allowed to.  `first_failed` is the rank whose failure came
    first; None if no rank raised or died.  `stuck` means that hung ranks were ended before
    `timeout`, because they waited in calls that could never complete.  `mismatches` describes
    where ranks disagreed on their collectives, and `mismatch_at` is the program's line of a call of
    the first mismatch, "" if it is not known; `waiting` describes the state of the ranks in each
    process group in which a rank waited, and `missed` has for each rank the collective that it had
    not called while others waited in it, "" for none.  `problem` says why the group failed if no
    rank explains it.  `leftovers` lists the processes that outlived their rank and were ended with
    the group.  `launcher_log` is the end of the output of torchrun or of the process that forked
    the ranks; `hint` is advice for the user.
    """

    task: str
    folder: Path
    ranks: tuple[RankResult, ...]
    seconds: float
    timeout: float
    stuck: bool = False
    first_failed: int | None = None
    mismatches: tuple[str, ...] = ()
    mismatch_at: str = ""
    waiting: tuple[str, ...] = ()
    missed: tuple[str, ...] = ()
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
        """The return value of each rank's program, by rank; only of a result that is `ok`.

        `raise_for_failure` in `launch.failure` says what happened otherwise.
        """
        assert self.ok, self
        return [rank.value for rank in self.ranks]
