"""The rows of an inconclusive report: one cause first, then what may follow from it.

Called by `message`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pytest_trainsafe.core.finding import Finding
from pytest_trainsafe.core.usage import listing
from pytest_trainsafe.judges.compare.guards.causes import by_cause, check_of
from pytest_trainsafe.judges.compare.judgement import RungJudgement
from pytest_trainsafe.report.rows import row

#: The most further findings of one check that are listed.
MAX_OTHERS = 3


def doubt_rows(judged: Sequence[RungJudgement]) -> list[str]:
    """The rows on inconclusive findings: the one that causes others, those, and independent ones.

    Each check is shown once, with the dtypes of its findings.
    """
    dtypes: dict[str, list[str]] = {}
    for entry in judged:
        for finding in entry.doubts:
            dtypes.setdefault(finding.check, []).append(entry.dtype)
    every = [finding for entry in judged for finding in entry.doubts]
    if not every:
        return []
    doubts = by_cause(every)
    lines = _doubt("because", doubts.cause, dtypes)
    follow = list(dict.fromkeys(finding.check for finding in doubts.follow))
    if follow:
        are = "is" if len(follow) == 1 else "are"
        lines += row("may follow", f"{listing(follow)}, which {are} inconclusive too")
    for check in dict.fromkeys(map(check_of, doubts.apart)):
        same = [finding for finding in doubts.apart if check_of(finding) == check]
        lines += _doubt("also", same, dtypes)
    names = list(dict.fromkeys(finding.check for finding in doubts.cause))
    name = names[0] if len(names) == 1 else check_of(doubts.cause[0])
    text = f"accept=[{name!r}] in the marker, if this is meant"
    if len(dtypes) > len(names):
        text += "; each other check has a name of its own"
    return lines + row("to accept", text)


def _doubt(label: str, found: Sequence[Finding], dtypes: Mapping[str, Sequence[str]]) -> list[str]:
    """The rows on one check: its first finding, then the tensors or the kinds of the others."""
    first = found[0]
    where = f"{first.where}: " if first.where is not None else ""
    seen = ", ".join(dict.fromkeys(dtypes[first.check]))
    lines = row(label, f"{where}{first.message} ({first.check}; {seen})")
    others = list(dict.fromkeys(_other(f) for f in found[1:] if not _same(f, first)))
    for other in others[:MAX_OTHERS]:
        lines += row("", f"and {other}")
    if len(others) > MAX_OTHERS:
        lines += row("", f"and {len(others) - MAX_OTHERS} more like it")
    return lines


def _same(finding: Finding, other: Finding) -> bool:
    """Whether two doubts differ at most in their dtype."""
    return (finding.check, finding.where) == (other.check, other.where) and (
        finding.message == other.message or finding.check != check_of(finding)
    )


def _other(finding: Finding) -> str:
    """A further doubt of one check, in a few words: its tensor, its kind of tensor, or its text."""
    if finding.where is not None:
        return str(finding.where)
    kind = finding.check.partition(":")[2]
    return f"the same of kind {kind} ({finding.check})" if kind else finding.message
