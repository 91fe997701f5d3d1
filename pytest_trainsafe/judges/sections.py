"""Makes the Section of a judgement for the page of `--trainsafe-report`.

A judgement names the module of its panels in `panels`, as it names that of its sentences in `text`.
A judgement without one has a table of its Findings.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

from pytest_trainsafe.core.finding import Finding
from pytest_trainsafe.judges.contract import Judgement
from pytest_trainsafe.judges.first_line import first_line
from pytest_trainsafe.judges.joint import JointJudgement
from pytest_trainsafe.judges.joint_text import report_of
from pytest_trainsafe.report.panels import LABEL, Panel, Section, State, Table, number
from pytest_trainsafe.report.sections import add, collecting, label
from pytest_trainsafe.report.source import code_at

#: The most Findings of one judgement that the page lists.
MOST_FINDINGS = 200


def show(judgement: Judgement, text: str, what: str = "") -> None:
    """Adds the Section of a judgement to those of the running test, if a page is made.

    `text` is the report, "" for none; `what` names the judged Run if the judgement does not.
    """
    if not collecting():
        return
    named = label(getattr(judgement, "what", "") or what, LABEL)
    passed = judgement.verdict == "pass"
    notes = [label(each, 2_000) for each in judgement.not_compared[:100]]
    try:
        panels = tuple(_panels(judgement))
    except Exception as error:  # of a project's own judge: a page must not change a verdict
        panels = ()
        notes.insert(0, label(f"no panels: {type(error).__name__}: {error}"))
    add(
        Section(
            judge=judgement.judge,
            verdict=judgement.verdict,
            what=named,
            text=text,
            notes=tuple(notes),
            panels=panels,
            distinct=named if passed else label(first_line(judgement), LABEL),
        )
    )


def show_joint(joint: JointJudgement) -> None:
    """Adds a Section for each judge of a test that judged something, if a page is made.

    The leading one has the whole report of the test.
    """
    if not collecting():
        return
    what = "" if joint.case is None else f"{joint.case.program.name} at {joint.case.point}"
    for each in joint.judgements:
        leads = each is joint.leading
        if leads or each.findings or each.not_compared or getattr(each, "panels", ""):
            show(each, report_of(joint) if leads else "", what)


def _panels(judgement: Judgement) -> list[Panel]:
    """The panels of a judgement: those that its wing makes, then what every judgement has."""
    path = getattr(judgement, "panels", "")
    own = import_module(path).panels(judgement) if path else findings_tables(judgement.findings)
    made: list[Panel] = [*own, *getattr(judgement, "drawn", ())]
    lines = dict.fromkeys(each.source for each in judgement.findings[:8] if each.source)
    if not any(panel.title.startswith(SOURCE) for panel in made):
        made += [code for line in [*lines][:2] if (code := code_at(line, SOURCE)) is not None]
    artefacts = getattr(judgement, "artefacts", {})
    rows = [(label(what), label(path)) for what, path in artefacts.items() if what[:1] != "_"]
    if rows:
        made.append(Table(title="Files", rows=tuple(rows)))
    return made


SOURCE = "Source"


def findings_tables(findings: Sequence[Finding]) -> list[Panel]:
    """A table of Findings, and one of their evidence."""
    shown = findings[:MOST_FINDINGS]
    if not shown:
        return []
    left = len(findings) - len(shown)
    several = len(shown) > 1
    states = tuple(_state(each, place) for place, each in enumerate(shown)) if several else ()
    causes = [label(each.pattern.cause) if each.pattern is not None else "" for each in shown]
    known = any(causes)
    anchors = tuple(label(each.about or "") for each in shown)
    table = Table(
        title="Findings",
        columns=("about", "check", "finding", *(["likely cause"] if known else [])),
        rows=tuple(
            (
                label(each.about or each.check),
                label(each.check),
                label(_said(each)),
                *([cause] if known else []),
            )
            for each, cause in zip(shown, causes, strict=True)
        ),
        states=states,
        anchors=anchors,
        note=f"{left} more" if left else "",
    )
    return [table, *_evidence(shown, states, anchors)]


def _said(finding: Finding) -> str:
    text = finding.message.partition("\n")[0]
    if finding.pattern is not None and finding.pattern.text not in ("", text):
        text = f"{text}; {finding.pattern.text}" if text else finding.pattern.text
    return text


def _evidence(
    findings: Sequence[Finding], states: Sequence[State], anchors: Sequence[str]
) -> list[Panel]:
    """A table of the evidence of Findings, none without evidence.

    It has a column for each name, or a row for each if there is one Finding.
    """
    if len(findings) == 1 and findings[0].evidence:
        facts = tuple((label(name), _cell(value)) for name, value in findings[0].evidence[:100])
        return [Table(title="Evidence", rows=facts)]
    names = list(dict.fromkeys(name for each in findings for name, _ in each.evidence))[:12]
    if not names:
        return []
    rows = []
    for each in findings:
        known = dict(each.evidence)
        rows.append((label(each.about or each.check), *(_cell(known.get(n)) for n in names)))
    table = Table(
        title="Evidence",
        columns=("about", *map(label, names)),
        rows=tuple(rows),
        states=tuple(states),
        anchors=tuple(anchors),
    )
    return [table]


def _state(finding: Finding, position: int) -> State:
    if finding.verdict != "fail":
        return "doubt" if finding.verdict == "inconclusive" else ""
    return "first" if position == 0 else "wrong"


def _cell(value: str | int | float | bool | None) -> str | int | float | bool | None:
    if isinstance(value, str):
        return label(value)
    return number(value) if isinstance(value, float) else value
