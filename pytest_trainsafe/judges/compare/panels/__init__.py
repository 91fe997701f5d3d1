"""The comparison's panels: which tensors were compared, how large errors are, where they start.

marks     the lines among these that take part; state and set_marks find some of them
dataflow  the modules in order, forward and backward; errors layer by layer and kind by kind
source    the lines of the code at fault, and of the other places that its description names
tensors   every compared tensor, and every dtype
"""

from __future__ import annotations

from collections.abc import Sequence

from pytest_trainsafe.core.point import AxisValue
from pytest_trainsafe.judges.compare.judgement import LadderJudgement, RungJudgement
from pytest_trainsafe.judges.compare.localize.code.ran import Ran
from pytest_trainsafe.judges.compare.panels.dataflow import curves, dataflow, kinds
from pytest_trainsafe.judges.compare.panels.source import source
from pytest_trainsafe.judges.compare.panels.tensors import Compared, dtypes, tensors
from pytest_trainsafe.report.panels import Panel

__all__ = ["panels"]


def panels(judgement: LadderJudgement) -> Sequence[Panel]:
    """The panels of a comparison; those of one dtype show the one that fails, else the last."""
    if not judgement.rungs:
        return ()
    shown = _shown(judgement.rungs)
    failing = [f for f in shown.comparison.findings if f.verdict == "fail"]
    compared = Compared.of(shown)
    code = source(judgement.located, failing, shown.explained, _ran(judgement))
    made = [*code, dataflow(compared), *judgement.placed, kinds(compared), *curves(compared)]
    made += [*judgement.pictures, dtypes(judgement.rungs), tensors(compared)]
    return [panel for panel in made if panel is not None]


def _ran(judgement: LadderJudgement) -> Ran:
    """The lines that ran, as far as the traces show and the axis values decide it."""
    if judgement.case is None:
        return Ran(judgement.ran, judgement.reference_ran)
    point = judgement.case.point
    axes: dict[str, AxisValue] = {**point.sizes, **dict(point)}
    if axes.get("cp", 1) != 1:
        axes.pop("dp", None)  # by dp, programs also mean dp and cp together
    return Ran(judgement.ran, judgement.reference_ran, axes)


def _shown(rungs: Sequence[RungJudgement]) -> RungJudgement:
    """The rung whose comparison fails, else the one with the largest error."""
    failed = [rung for rung in rungs if rung.comparison.failed]
    return failed[-1] if failed else max(rungs, key=lambda rung: rung.comparison.worst)
