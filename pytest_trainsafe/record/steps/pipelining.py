"""Marks the micro-batches of torch.distributed.pipelining.

The loop over the micro-batches is inside torch's schedules, where a program cannot enter
`ctx.microbatch`.  So the program calls `ctx.follow`, which calls this file.  A schedule calls its
stages once per micro-batch.  The first call of a stage may only infer shapes, without data; it
belongs to no micro-batch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from pytest_trainsafe.record.clock import Clock, ProgramError

#: The methods of a stage that a schedule calls with a micro-batch's number on this rank.  The last
#: is for schedules that defer the gradients of weights; some releases of torch lack it.
METHODS = ("forward_one_chunk", "backward_one_chunk", "backward_weight_one_chunk")


def follow(
    stages: Iterable[Any],
    numbers: Sequence[int],
    clock: Clock,
    microbatch: Callable[[int], AbstractContextManager[int]],
) -> None:
    """Makes the stages enter `microbatch(numbers[i])` while they compute their i-th micro-batch.

    Raises ProgramError for an object that is not a stage, and, when a schedule runs, for a
    micro-batch beyond the end of `numbers`.
    """
    for stage in stages:
        if not all(callable(getattr(stage, name, None)) for name in METHODS[:2]):
            raise ProgramError(
                f"ctx.follow was given a {type(stage).__name__}; pass a stage of "
                "torch.distributed.pipelining, or a list of this rank's stages"
            )
        for name in METHODS:
            if hasattr(stage, name):
                method = getattr(stage, name)
                late = name == METHODS[2]
                setattr(stage, name, _marked(method, numbers, clock, microbatch, late))


def _marked(
    method: Callable[..., Any],
    numbers: Sequence[int],
    clock: Clock,
    microbatch: Callable[[int], AbstractContextManager[int]],
    late: bool,
) -> Callable[..., Any]:
    @functools.wraps(method)
    def marked(*args: Any, **kwargs: Any) -> Any:
        if clock.step is None:
            return method(*args, **kwargs)  # an evaluation, which is not recorded
        index = int(next(iter((*args, *kwargs.values()))))
        if index >= len(numbers):
            raise ProgramError(
                f"a pipeline stage ran micro-batch {index} (counted from 0), but ctx.follow was "
                f"told that this rank has only {len(numbers)} micro-batches; pass ctx.follow the "
                "number of micro-batches of a step, summed over all dp ranks"
            )
        with microbatch(numbers[index]):
            clock.resumed = late
            try:
                return method(*args, **kwargs)
            finally:
                clock.resumed = False

    return marked
