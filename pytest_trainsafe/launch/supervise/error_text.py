"""The text of a rank's exception, as a user should read it.  Called by the rank.

Frames that do not help the user are removed from the traceback: the frames of this package before
the program's first frame, which only show how a rank starts, and frames that only call the next one
(`Module._call_impl`), which would displace the program's frames if the traceback is shortened.  If
this package raises one of its own errors, all of its frames are removed, so that the traceback ends
with the program's line that caused the error.

The exception comes from the program, so its text may be huge or not encodable, and computing it
may raise.
"""

from __future__ import annotations

import contextlib
import linecache
import traceback
from collections.abc import Iterator

from pytest_trainsafe.core.code_files import is_installed, is_ours, is_stdlib, only_calls
from pytest_trainsafe.core.cut_text import ERROR_LIMIT, TRACEBACK_LIMIT, cut, encodable

#: Characters of the source text that replaces an exception's missing text.
_SOURCE_LIMIT = 300


def type_name(error: BaseException) -> str:
    """The name of the exception's class, for a headline."""
    return cut(encodable(type(error).__qualname__), 200)


def own_text(error: BaseException) -> str:
    """The exception's text; if it has none, the source line that raised it, and its location."""
    try:
        text = encodable(cut(str(error), ERROR_LIMIT))
    except BaseException as failed:
        return f"(its text is unknown: __str__ raised {type_name(failed)}){_at(error)}"
    return text if text.strip() else _source(error)


def error_text(error: BaseException) -> str:
    """The traceback of an error, from the program's first frame on.

    For an error of a class of this package, returns only the program's frames, because the error's
    message is reported separately, or the line of the program's definition if it has no such frame
    and the error knows it.  Otherwise returns the whole traceback.
    """
    try:
        return encodable(cut(_formatted(error), TRACEBACK_LIMIT))
    except Exception as failed:  # an exception's attributes may be properties that raise
        frames = "".join(traceback.format_tb(error.__traceback__, -20))
        why = f"(the traceback is incomplete: formatting it raised {type_name(failed)})\n"
        return encodable(cut(f"{frames}{type_name(error)}\n{why}", TRACEBACK_LIMIT))


def _formatted(error: BaseException) -> str:
    formatted = traceback.TracebackException.from_exception(error)
    if type(error).__module__.partition(".")[0] == __name__.partition(".")[0]:
        frames = [frame for frame in formatted.stack if not _is_between(frame.filename)]
        defined = getattr(error, "defined_at", None)
        frames = frames or ([traceback.FrameSummary(*defined)] if defined else [])
        if frames:
            return "".join(traceback.StackSummary.from_list(frames).format())
    while len(formatted.stack) > 1 and _is_start(formatted.stack[0].filename):
        formatted.stack.pop(0)
    for each in _chain(formatted):
        kept = [frame for frame in each.stack[:-1] if not only_calls(frame.filename, frame.name)]
        each.stack[:-1] = kept
        # Formatting copies the text several times: an exception may hold hundreds of megabytes.
        each._str = cut(str(each._str), ERROR_LIMIT)  # type: ignore[attr-defined]
        notes = getattr(each, "__notes__", None)
        if isinstance(notes, list):
            each.__notes__ = [cut(str(note), ERROR_LIMIT) for note in notes[:20]]
    return "".join(formatted.format())


def _chain(formatted: traceback.TracebackException) -> Iterator[traceback.TracebackException]:
    """Yields the exception and all that are chained to it: cause, context, members of a group."""
    queue = [formatted]
    while queue:
        each = queue.pop()
        yield each
        queue += [other for other in (each.__cause__, each.__context__) if other is not None]
        queue += getattr(each, "exceptions", None) or []


def _source(error: BaseException) -> str:
    """The source text that raised an exception without text, and its location.

    If the location is in an installed package, for example in a framework's assertion, the line of
    the program that led there follows.
    """
    frame, program = _raising_frame(error), _program_frame(error)
    if frame is None:
        return "(no text)"
    first, last = frame.lineno or 0, getattr(frame, "end_lineno", None) or frame.lineno or 0
    lines = [linecache.getline(frame.filename, number).strip() for number in range(first, last + 1)]
    text = cut(encodable(" ".join(filter(None, lines))), _SOURCE_LIMIT)
    called = "" if program in (None, frame) else f", called from {_place(program)}"
    return f"{text or '(no text)'} at {_place(frame)}{called}"


def _at(error: BaseException) -> str:
    frame = _program_frame(error)
    return "" if frame is None else f" at {_place(frame)}"


def _place(frame: traceback.FrameSummary | None) -> str:
    return "" if frame is None else f"{encodable(frame.filename)}:{frame.lineno}"


def _raising_frame(error: BaseException) -> traceback.FrameSummary | None:
    """The innermost frame outside of this package and the standard library; else the innermost."""
    frames = traceback.extract_tb(error.__traceback__)
    for frame in reversed(frames):
        file = frame.filename
        if not (_is_between(file) or file.startswith("<") or is_stdlib(file)):
            return frame
    return frames[-1] if frames else None


def _program_frame(error: BaseException) -> traceback.FrameSummary | None:
    """The innermost frame of the program's own code; else the innermost frame."""
    frames = traceback.extract_tb(error.__traceback__)
    for frame in reversed(frames):
        file = frame.filename
        between = _is_between(file) or file.startswith("<")
        if not (between or is_installed(file) or is_stdlib(file)):
            return frame
    return frames[-1] if frames else None


def _is_start(file: str) -> bool:
    """Whether a frame's file belongs to this package or to Python's import system."""
    return is_ours(file) or file.startswith("<frozen")


def _is_between(file: str) -> bool:
    return _is_start(file) or file == contextlib.__file__
