"""Schedule: the freedom that real ranks have, decided for ranks that run one at a time.

A RunSpec and a Task may ask for one; the launcher `threads` keeps it.
"""

from __future__ import annotations

from typing import Literal

import msgspec

#: When an asynchronous collective takes its input or writes its output: when the last rank calls
#: it, which is as early as it can, or when the rank waits for it, as late as it must.
Moment = Literal["issue", "wait"]


class Schedule(msgspec.Struct, frozen=True):
    """When asynchronous collectives happen, and which rank runs next.

    `output` says when a rank sees the result of an asynchronous collective or receive; with "wait"
    a buffer that is only received into holds NaN until then.  `taken` says when the input of a
    collective or send is read: as it is at the call, or as it is when the call completes.  A
    correct program computes the same in all schedules.  `seed` draws the rank that runs next from
    those that can; None takes the lowest one.
    """

    output: Moment = "issue"
    taken: Moment = "issue"
    seed: int | None = None


#: As late as a program must expect, in an order of ranks that is not ascending.
LATE = Schedule("wait", "wait", 1)
