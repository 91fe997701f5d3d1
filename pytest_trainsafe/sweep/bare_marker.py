"""Explains the collection error of `@pytest.mark.trainsafe(program)` without any keyword.

If a marker is called with a single function and no other argument, pytest takes the call for a
decorator of that function.  It marks the program, and Python then calls the program with the test.
"""

from __future__ import annotations

import inspect
from types import TracebackType

from pytest_trainsafe.sweep.signature import MARKER


def explanation(traceback: TracebackType | None) -> str | None:
    """The message on what to write instead, if a program was used as a decorator; else None."""
    while traceback is not None:
        frame = traceback.tb_frame
        name = frame.f_code.co_name
        program = frame.f_globals.get(name)
        marks = getattr(program, "pytestmark", None)
        if isinstance(marks, list) and any(getattr(m, "name", "") == MARKER for m in marks):
            given = next(iter(frame.f_locals.values()), None)
            if inspect.isfunction(given):
                return (
                    f"pytest applied the marker to {name} and then called {name} with the test "
                    f"{given.__name__}, since @pytest.mark.{MARKER}({name}) has no keyword. Name "
                    f"an axis, such as tp=1, or give the program as a string: "
                    f'@pytest.mark.{MARKER}("{program.__module__}:{name}")'
                )
        traceback = traceback.tb_next
    return None
