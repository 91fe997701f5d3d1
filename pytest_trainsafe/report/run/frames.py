"""Tracebacks without frames of this package: an exception of it shows the lines of the test alone.

Called by the plugin around pytest's report of a failing test.  `--full-trace` shows every frame, as
do exceptions of other classes, which may be bugs of this package.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import pytest

from pytest_trainsafe.core.code_files import PACKAGE, is_fixture, is_installed, is_stdlib
from pytest_trainsafe.errors import TrainsafeError

#: The packages that call tests and fixtures.
_CALLERS = ("_pytest", "pluggy", "hypothesis")

_HIDE = "__tracebackhide__"

_OURS = f"{PACKAGE}{os.sep}"
_MODELS = f"{PACKAGE / 'reference_models'}{os.sep}"


@contextmanager
def hidden(
    config: pytest.Config,
    excinfo: pytest.ExceptionInfo[BaseException] | None,
    *,
    in_test: bool = True,
) -> Iterator[None]:
    """Hides frames of this package while pytest reports one of our exceptions.

    Also hides an exception that our code caught and turned into this one, whose text has the
    reason.  The exception itself, and so `--tb=native`, keeps all frames.
    """
    error = excinfo.value if excinfo is not None else None
    whole = config.getoption("fulltrace", False)
    if excinfo is None or not isinstance(error, TrainsafeError) or whole:
        yield
        return
    namespaces = _hide(excinfo, in_test=in_test)
    before = error.__cause__, error.__suppress_context__
    if _is_internal(error.__cause__ or error.__context__):
        error.__cause__ = None  # which suppresses the context too
    try:
        yield
    finally:
        error.__cause__, error.__suppress_context__ = before
        for each in namespaces:
            del each[_HIDE]


def _hide(excinfo: pytest.ExceptionInfo[BaseException], *, in_test: bool) -> list[dict[str, Any]]:
    """Marks our frames, and those of libraries that ours call, as pytest's plugins mark theirs.

    pytest looks for the mark among a frame's variables and those of its module.  Returns the
    modules' variables to which the mark was added.  If no line of the test is left, as in the setup
    of a fixture of ours, the exception's text stands alone; in the test itself (`in_test`), nothing
    is marked then.
    """
    ours, shown, below = [], [], False
    for entry in excinfo.traceback:
        file, variables = str(entry.path), entry.frame.f_globals
        below = _is_ours(file) or (below and (is_installed(file) or is_stdlib(file)))
        if below and not _is_caller(variables):
            ours.append(variables)
        else:
            shown.append(entry)
    if shown and all(_is_caller(entry.frame.f_globals) for entry in shown):
        if in_test:  # a fuzz test, whose exception no line of the test raises
            return []
        alone = shown[0].with_repr_style("value")  # type: ignore[arg-type]
        excinfo.traceback = type(excinfo.traceback)([alone])
    namespaces = []
    for variables in ours:
        if _HIDE not in variables:
            variables[_HIDE] = True
            namespaces.append(variables)
    return namespaces


def _is_ours(file: str) -> bool:
    return is_fixture(file) or (file.startswith(_OURS) and not file.startswith(_MODELS))


def _is_caller(variables: Mapping[str, object]) -> bool:
    """Whether a module, given its variables, calls tests and fixtures."""
    return str(variables.get("__name__")).partition(".")[0] in _CALLERS


def _is_internal(error: BaseException | None) -> bool:
    """Whether our code caught an exception: its traceback begins where it was caught."""
    frames: TracebackType | None = error.__traceback__ if error is not None else None
    return frames is not None and _is_ours(frames.tb_frame.f_code.co_filename)
