"""How a test ended at one Point, and which failures are the same bug.

Two failures are the same bug if the same check found the first wrong tensor of the same kind and
module, and the tensor is wrong in the same way.  Numbers in names do not count, so that the second
layer of a deep model is the second layer of any other, and the same code.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from pytest_trainsafe.assertions import TrainsafeFailure
from pytest_trainsafe.core.finding import Finding
from pytest_trainsafe.launch import GroupFailure

#: How a test ends at a Point.  "refused": the program or its framework says that it does not
#: support the Point; "skipped": the test skipped the Point, or the machine cannot run it.
End = Literal["passes", "fails", "inconclusive", "refused", "skipped"]

_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Ending:
    """How a test ended at one Point, and by which exception (None if it passed).

    Failures with one `bug` are the same.  `reason` says in one line why the Point has no verdict;
    it is "" if the test passed or failed.
    """

    end: End
    error: BaseException | None = None
    bug: str = ""
    reason: str = ""


PASSED = Ending("passes")


def ending_of(error: BaseException, refusals: Collection[str]) -> Ending:
    """The Ending of a test that raised `error`.

    `refusals` names the classes of exceptions by which the program refuses a Point.
    """
    frames = traceback.extract_tb(error.__traceback__)
    plain = error.with_traceback(None)
    if isinstance(error, pytest.skip.Exception):
        return Ending("skipped", plain, reason=_line(error))
    if isinstance(error, TrainsafeFailure):
        lead = next((f for f in error.findings if f.verdict == "fail"), None)
        if lead is None and error.findings:
            checks = dict.fromkeys(finding.check for finding in error.findings)
            return Ending("inconclusive", plain, reason=f"inconclusive: {', '.join(checks)}")
        name = type(error).__name__
        return Ending("fails", plain, f"{name}: {_bug(lead) if lead is not None else ''}")
    if isinstance(error, GroupFailure):
        return _of_group(error, plain, refusals)
    where = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return Ending("fails", plain, f"{type(error).__name__} at {where}")


def _bug(lead: Finding) -> str:
    """What the first wrong tensor is, and how it is wrong."""
    pattern = lead.pattern.name if lead.pattern is not None else ""
    if lead.where is not None:
        about = f"{lead.where.kind} {lead.where.path}"
    else:
        about = f"{type(lead.subject).__name__} {lead.subject}"
    return _NUMBER.sub("#", f"{lead.check} {about} {pattern}")


def _of_group(error: GroupFailure, plain: BaseException, refusals: Collection[str]) -> Ending:
    from pytest_trainsafe.launch.failure import raised, reason

    found = raised(error.result)
    if found and all(kind in refusals for kind, _ in found):
        return Ending("refused", plain, reason=f"refused: {reason(error.result)}")
    if found:
        texts = sorted(f"{kind} {text}" for kind, text in found)
    else:
        texts = sorted({rank.status for rank in error.result.ranks})
    return Ending("fails", plain, _NUMBER.sub("#", f"GroupFailure: {' '.join(texts)}"))


def text_of(error: Any) -> str:
    """The report of an error, or its class and message."""
    if isinstance(error, (TrainsafeFailure, GroupFailure)):
        return str(error)
    return "".join(traceback.format_exception_only(error)).strip()


def _line(error: BaseException) -> str:
    return f"skipped: {str(error).partition(chr(10))[0]}"
