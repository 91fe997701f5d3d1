"""Steps and micro-batches that are opened by one call and closed by another.

For training loops inside a framework, which call the program back when a step or micro-batch
begins and when it ends.  Used by `ctx.begin_step` and the like; `with ctx.step():` does not need
this.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType

from pytest_trainsafe.record.clock import ProgramError

#: A Step enters the next step, and a Microbatch the micro-batch with a given number; both yield
#: the number.
Step = Callable[[], AbstractContextManager[int]]
Microbatch = Callable[[int], AbstractContextManager[int]]


class Marks:
    """The open step and micro-batch.  A context manager around the whole program.

    Raises ProgramError at its end if a step or micro-batch is still open, unless an exception
    ends the program.
    """

    def __init__(self, step: Step, microbatch: Microbatch) -> None:
        self._enter_step = step
        self._enter_microbatch = microbatch
        self._step: AbstractContextManager[int] | None = None
        self._microbatch: AbstractContextManager[int] | None = None
        self._numbers = (0, 0)

    def begin_step(self) -> int:
        """Opens the next step; returns its number."""
        opened = self._enter_step()
        number = opened.__enter__()
        self._step, self._numbers = opened, (number, 0)
        return number

    def end_step(self) -> None:
        """Closes the step that `begin_step` opened."""
        if self._step is None:
            raise ProgramError(
                "ctx.end_step was called, but ctx.begin_step has not opened a step; call "
                "ctx.begin_step() where a step begins, or use `with ctx.step():` around it"
            )
        if self._microbatch is not None:
            raise ProgramError(
                f"ctx.end_step was called in micro-batch {self._numbers[1]} of step "
                f"{self._numbers[0]}; call ctx.end_microbatch() first"
            )
        opened, self._step = self._step, None
        opened.__exit__(None, None, None)

    def begin_microbatch(self, index: int) -> None:
        """Opens the micro-batch with this global number."""
        opened = self._enter_microbatch(index)
        opened.__enter__()
        self._microbatch, self._numbers = opened, (self._numbers[0], index)

    def end_microbatch(self) -> None:
        """Closes the micro-batch that `begin_microbatch` opened."""
        if self._microbatch is None:
            raise ProgramError(
                "ctx.end_microbatch was called, but ctx.begin_microbatch has not opened a "
                "micro-batch; call ctx.begin_microbatch(index) where one begins"
            )
        opened, self._microbatch = self._microbatch, None
        opened.__exit__(None, None, None)

    def __enter__(self) -> Marks:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        left = [opened for opened in (self._microbatch, self._step) if opened is not None]
        inside, self._microbatch, self._step = self._microbatch, None, None
        if not left:
            return
        step, microbatch = self._numbers
        what = f"micro-batch {microbatch} of step {step}" if inside else f"step {step}"
        call = "ctx.end_microbatch() and ctx.end_step()" if inside else "ctx.end_step()"
        unclosed = ProgramError(f"the program ended in {what}; call {call} before the program ends")
        for opened in left:
            # Close it as if an exception had ended it, so that nothing is written.
            raised = error or unclosed
            opened.__exit__(type(raised), raised, trace)
        if error is None:
            raise unclosed
