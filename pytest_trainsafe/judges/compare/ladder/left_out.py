"""Says of a failed comparison which gradients and steps it does not cover, and why.

Called by the ladder while the traces exist, if a page shows the run: a reader who sees no wrong
gradient there must know whether any was compared.
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_trainsafe.core.tensor_id import INITIAL, MEANINGS, Kind
from pytest_trainsafe.judges.compare.comparison import Comparison
from pytest_trainsafe.judges.compare.rung import RungTraces

_GRADIENTS: tuple[Kind, ...] = ("activation_grad", "param_grad", "main_grad")


def left_out(rung: RungTraces, comparison: Comparison) -> Iterator[tuple[str, str]]:
    """Rows of a page on the gradients and the steps that were not compared, with the reasons."""
    failing = (f.where for f in comparison.findings if f.verdict == "fail")
    step = min((where.step for where in failing if where is not None), default=None)
    if step is None:
        return
    if step == INITIAL:
        text = (
            "activations, gradients and updates of all steps: the parameters are wrong before the "
            "first step, so each step starts from wrong values"
        )
        yield "not compared", text
        return
    traces = {"reference": rung.reference, "candidate": rung.candidate}
    held = {name: {id.kind for id in trace.ids()} for name, trace in traces.items()}
    for kind in _GRADIENTS:
        if not comparison.compared[kind]:
            lacking = [name for name, kinds in held.items() if kind not in kinds]
            why = f"the {' and the '.join(lacking)} recorded none"
            why = why if lacking else "none of one Run has a counterpart in the other"
            yield "not compared", f"{kind} ({MEANINGS[kind]}): {why}"
    last = max(id.step for id in rung.reference.ids())
    if last > step:
        later = f"step {last}" if last == step + 1 else f"steps {step + 1} to {last}"
        yield "not compared", f"{later}: what step {step} makes wrong is what they start from"
