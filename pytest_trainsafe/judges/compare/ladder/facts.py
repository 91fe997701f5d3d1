"""What a page says of a failed comparison beside its first wrong tensor, as rows of label and text.

Called by the ladder while the traces exist, if a page shows the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from pytest_trainsafe.core.finding import Finding, Located
from pytest_trainsafe.judges.compare.guards.later_steps import Apart
from pytest_trainsafe.judges.compare.judgement import lead_of
from pytest_trainsafe.judges.compare.localize.axes import only_axis

if TYPE_CHECKING:
    from pytest_trainsafe.sweep.case import Case

#: The most rows.
MOST_FACTS = 12


def facts_of(
    case: Case, failing: Sequence[Finding], located: Located | None, apart: Iterable[Apart]
) -> list[tuple[str, str]]:
    """The axis, the step in which `failing` begins, what is at fault, and settings that differ.

    `failing` are the failing findings in dataflow order, and `apart` the settings.
    """
    named: dict[str, list[str]] = {}
    last = ""
    for label, text in () if located is None else located.rows:
        last = label or last
        named.setdefault(last, []).append(text)
    named.pop("localised", None)
    axis = "; ".join(named.pop("axis", [])) or only_axis(case)
    rows = [("axis", axis)] if axis else []
    rows += begins(failing)
    rows += [(label, "; ".join(texts)) for label, texts in named.items()]
    rows += [("settings", str(each)) for each in apart]
    return rows[:MOST_FACTS]


def begins(failing: Sequence[Finding]) -> list[tuple[str, str]]:
    """The step before which everything that was compared agrees; none if it is the first."""
    lead = lead_of(failing).where if failing else None
    if lead is None or lead.step < 1:
        return []
    if any(each.where is None or each.where.step < lead.step for each in failing):
        return []
    before = "step 0" if lead.step == 1 else f"steps 0 to {lead.step - 1}"
    text = (
        f"in step {lead.step}: every tensor of {before} that was compared agrees, so the fault "
        "may need what an earlier step changed"
    )
    return [("begins", text)]
