"""Makes the Document of a run from pytest's reports, in the process that has all of them."""

from __future__ import annotations

import importlib.metadata
import platform
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.config.table import OPTIONS
from pytest_trainsafe.core.untrusted import MALFORMED
from pytest_trainsafe.printable import printable
from pytest_trainsafe.report.html.document import Document, Entry, Run, finite, merged
from pytest_trainsafe.report.panels import Section
from pytest_trainsafe.report.rerun import rerun_with
from pytest_trainsafe.report.run.outcome import Outcome, summaries
from pytest_trainsafe.report.sections import ATTRIBUTE, label, printable_data

if TYPE_CHECKING:
    import pytest

    from pytest_trainsafe.sweep.point_summary import PointSummary

#: The packages whose versions a page names.
_PACKAGES = ("pytest-trainsafe", "pytest", "torch", "numpy", "deepspeed", "transformers")

_WORST = ("error", "fail", "inconclusive", "pass")


def document_of(
    reports: Sequence[pytest.TestReport], found: Sequence[Outcome], settings: Settings
) -> Document:
    """The Document of a run with these reports and Outcomes."""
    sections = _sections(reports)
    judged = [outcome for outcome in found if outcome.verdict != "skipped"]
    known = {outcome.nodeid for outcome in judged}
    judged += [_unmarked(id, own, reports) for id, own in sections.items() if id not in known]
    rerun = rerun_with(settings)
    more = _of_points(summaries(reports))
    entries = [
        Entry(
            outcome=finite(outcome),
            sections=sections.get(outcome.nodeid, ()),
            run=0,
            stages=_stages(more.get((outcome.nodeid, outcome.point), {})),
            notes=_notes(more.get((outcome.nodeid, outcome.point), {})),
            rerun=printable(rerun.command(outcome.nodeid, reader=settings.root)),
        )
        for outcome in (_printable(_judged(each, sections)) for each in judged)
    ]
    skipped = Counter(label(o.reason) for o in found if o.verdict == "skipped")
    run = Run(
        settings=_settings(settings),
        versions=_versions(),
        options=rerun.options,
        seconds=round(sum(report.duration for report in reports), 2),
        skipped=dict(skipped.most_common(1_000)),
    )
    return merged([Document(runs=(run,), entries=tuple(entries))])


def _sections(reports: Iterable[pytest.TestReport]) -> dict[str, tuple[Section, ...]]:
    """The Sections of each test, by node id; what cannot be decoded is left out."""
    found: dict[str, tuple[Section, ...]] = {}
    for report in reports:
        text = getattr(report, ATTRIBUTE, None)
        if isinstance(text, str):
            try:
                own = msgspec.json.decode(text, type=tuple[Section, ...])
            except (*MALFORMED, msgspec.ValidationError):
                continue
            found[report.nodeid] = (*found.get(report.nodeid, ()), *own)
    return found


def _judged(outcome: Outcome, sections: Mapping[str, Sequence[Section]]) -> Outcome:
    """The Outcome with the verdict of a judge that was asked alone, which has no summary."""
    own = sections.get(outcome.nodeid, ())
    verdict = next((w for w in _WORST[1:3] if any(s.verdict == w for s in own)), "")
    if outcome.verdict != "error" or not verdict:
        return outcome
    return replace(outcome, verdict=verdict)


def _unmarked(
    nodeid: str, sections: Sequence[Section], reports: Iterable[pytest.TestReport]
) -> Outcome:
    """The Outcome of a test without the marker that has Sections."""
    verdict = next(each for each in _WORST if any(s.verdict == each for s in sections))
    lead = next(section for section in sections if section.verdict == verdict)
    said = (lead.distinct if verdict != "pass" else "") or lead.what
    of_test = [report for report in reports if report.nodeid == nodeid]
    return Outcome(
        nodeid,
        verdict,
        failed=any(report.failed for report in of_test),
        seconds=sum(report.duration for report in of_test),
        reason=said,
    )


def _printable(outcome: Outcome) -> Outcome:
    """The Outcome with printable texts, as `msgspec` can encode them."""
    plain = msgspec.to_builtins(outcome)
    return msgspec.convert(printable_data(plain), Outcome)


def _of_points(
    found: Iterable[tuple[str, PointSummary]],
) -> dict[tuple[str, str], Mapping[str, object]]:
    return {(nodeid, str(summary.get("point", ""))): dict(summary) for nodeid, summary in found}


def _stages(summary: Mapping[str, object]) -> dict[str, float]:
    seconds = summary.get("seconds")
    if not isinstance(seconds, dict):
        return {}
    return {
        label(name): round(float(value), 3)
        for name, value in [*seconds.items()][:50]
        if isinstance(value, int | float)
    }


def _notes(summary: Mapping[str, object]) -> tuple[str, ...]:
    notes = summary.get("notes")
    return tuple(label(note, 2_000) for note in notes[:100]) if isinstance(notes, list) else ()


def _settings(settings: Settings) -> dict[str, str]:
    default = Settings()
    return {
        option.name: label(option.shown(getattr(settings, option.field)))
        for option in OPTIONS
        if getattr(settings, option.field) != getattr(default, option.field)
        and option.name not in ("report", "shard", "from-plan")
    }


def _versions() -> dict[str, str]:
    found = {"Python": platform.python_version(), "system": platform.platform(terse=True)}
    for name in _PACKAGES:
        try:
            found[name] = label(importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
