"""The panels of a resumed training: the three Runs step by step, and what was not restored."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_trainsafe.judges.compare.panels import panels as compared_panels
from pytest_trainsafe.judges.replay.resume.judge import ResumedJudgement
from pytest_trainsafe.judges.sections import findings_tables
from pytest_trainsafe.report.panels import Event, Panel, State, Timeline
from pytest_trainsafe.report.sections import label

#: The most steps that are drawn.
MOST_STEPS = 200

_LANES = ("uninterrupted", "saves a checkpoint", "resumed")


def panels(judgement: ResumedJudgement) -> Sequence[Panel]:
    """The panels of the three Runs; those of the comparison if it resumed at another Point."""
    own = [each for each in judgement.findings if each.judge == judgement.judge]
    made: list[Panel] = [*_steps(judgement), *findings_tables(own)]
    if judgement.compared is not None:
        made += compared_panels(judgement.compared)
    return made


def _steps(judgement: ResumedJudgement) -> list[Panel]:
    """The steps of the three Runs, with those from the first difference on."""
    at, steps = judgement.at_step, min(judgement.steps, MOST_STEPS)
    if not steps:
        return []
    lead = next((f for f in judgement.findings if f.verdict == "fail"), None)
    lane = 1 if lead is not None and lead.check == "resume:save" else 2
    first = steps
    if lead is not None:
        where = lead.where.step if lead.where is not None else getattr(lead.subject, "step", at)
        first = max(at if lane == 2 else 0, where)
    events = []
    for number, name in enumerate(_LANES):
        for step in range(at if number == 2 else 0, steps):
            state: State = ""
            if number == lane and step >= first:
                state = "first" if step == first else "wrong"
            said = f"step {step}"
            if number == 1 and step == at - 1:
                said += ", then saves"
            if number == 2 and step == at:
                said = f"loads, then {said}"
            events.append(Event(number, float(step), 1.0, said, name, state, label(name)))
    return [
        Timeline(
            title="Steps of the three Runs",
            lanes=_LANES,
            events=tuple(events),
            unit="step",
            note=f"The checkpoint is saved after step {at - 1}, in {judgement.dtype}.",
        )
    ]
