"""What a page says of a failed comparison beside its first wrong tensor, as rows of label and text.

Called by the ladder while the traces exist, if a page shows the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from pytest_trainsafe.core.finding import Finding
from pytest_trainsafe.core.mesh.sweep_axes import parallel_axes
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.core.usage import name_ranks
from pytest_trainsafe.judges.compare.fault.located import Located
from pytest_trainsafe.judges.compare.guards.later_steps import Apart
from pytest_trainsafe.judges.compare.judgement import lead_of
from pytest_trainsafe.judges.compare.localize.axes import only_axis, parallel
from pytest_trainsafe.trace.reader import Trace

if TYPE_CHECKING:
    from pytest_trainsafe.sweep.case import Case

#: The most rows.
MOST_FACTS = 12


def facts_of(
    case: Case,
    candidate: Trace,
    failing: Sequence[Finding],
    located: Located | None,
    apart: Iterable[Apart],
) -> list[tuple[str, str]]:
    """The axis, the stage, the step in which `failing` begins, what is at fault, and settings.

    `failing` are the failing findings in dataflow order, and `apart` the settings that differ.
    """
    named: dict[str, list[str]] = {}
    last = ""
    for label, text in () if located is None else located.rows:
        last = label or last
        named.setdefault(last, []).append(text)
    named.pop("localised", None)
    axis = "; ".join(named.pop("axis", [])) or only_axis(case) or _likely_axis(case, failing)
    rows = [("axis", axis)] if axis else []
    lead = lead_of(failing).where if failing else None
    if stage := stage_of(candidate, lead):
        rows.append(("stage", stage))
    rows += begins(failing)
    rows += [(label, "; ".join(texts)) for label, texts in named.items()]
    rows += [("settings", str(each)) for each in apart]
    return rows[:MOST_FACTS]


def _likely_axis(case: Case, failing: Sequence[Finding]) -> str:
    """The axis that the pattern of the first wrong tensor names, or the only one; else ""."""
    pattern = lead_of(failing).pattern if failing else None
    if pattern is not None and pattern.axis:
        return f"{pattern.axis}, by the pattern; Points without it were not tried"
    axes = parallel(case.point, parallel_axes(case.point.mesh))
    alone = f"{axes[0]}, the only one of this Point" if len(axes) == 1 else ""
    return f"{alone}; the arguments differ from the reference's too" if alone else ""


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


def stage_of(candidate: Trace, where: TensorId | None) -> str:
    """The stages and ranks that hold a tensor, in words; "" if all stages do, or there is one."""
    count = candidate.sizes["pp"]
    if where is None or count < 2:
        return ""
    found = {rank.coordinates["pp"]: rank for rank, _ in candidate.holders(where)}
    if not found or len(found) == count:
        return ""
    ranks = [r.rank for r in candidate.ranks if r.coordinates["pp"] in found]
    named = " and ".join(f"pp={stage}" for stage in sorted(found))
    return f"{named} of {count} stages, on {name_ranks(ranks)}"
