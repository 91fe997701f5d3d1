"""The comparison's panels: which tensors were compared, how large errors are, where they start.

dataflow  the modules in order, forward and backward; errors layer by layer and kind by kind
tensors   every compared tensor, and every dtype
"""

from __future__ import annotations

from collections.abc import Sequence

from pytest_trainsafe.judges.compare.judgement import LadderJudgement, RungJudgement, lead_of
from pytest_trainsafe.judges.compare.panels.dataflow import curves, dataflow, kinds
from pytest_trainsafe.judges.compare.panels.tensors import Compared, dtypes, tensors
from pytest_trainsafe.report.panels import Panel
from pytest_trainsafe.report.source import code_at

__all__ = ["panels"]


def panels(judgement: LadderJudgement) -> Sequence[Panel]:
    """The panels of a comparison; those of one dtype show the one that fails, else the last."""
    if not judgement.rungs:
        return ()
    shown = _shown(judgement.rungs)
    compared = Compared.of(shown)
    made = [dataflow(compared), *_source(judgement, shown), kinds(compared), *curves(compared)]
    made += [*judgement.pictures, dtypes(judgement.rungs), tensors(compared)]
    return [panel for panel in made if panel is not None]


def _shown(rungs: Sequence[RungJudgement]) -> RungJudgement:
    """The rung whose comparison fails, else the one with the largest error."""
    failed = [rung for rung in rungs if rung.comparison.failed]
    return failed[-1] if failed else max(rungs, key=lambda rung: rung.comparison.worst)


def _source(judgement: LadderJudgement, shown: RungJudgement) -> list[Panel]:
    """The lines at fault, or those of the module that computes the first wrong tensor."""
    located = judgement.located
    places: dict[str, tuple[str, str]] = {}
    if located is not None and located.source:
        places[located.source] = "Source: the code at fault", located.what
    failing = [f for f in shown.comparison.findings if f.verdict == "fail"]
    if failing and not shown.explained:
        lead = lead_of(failing)
        note = f"class {lead.module_class}" if lead.module_class else ""
        places.setdefault(lead.source, ("Source: the module of the first wrong tensor", note))
    made = [code_at(place, *said) for place, said in places.items()]
    return [code for code in made if code is not None]
