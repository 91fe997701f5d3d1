"""Says what can be said of a fault in a program of which only whole steps are recorded.

Nothing flows between modules that could be rewritten, so no Run is made: what differs at the end
of a step tells the optimizer's step from all that comes before it.  Called by `search`.
"""

from __future__ import annotations

from pytest_trainsafe.core.finding import Located
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.judge.compare.comparison import Comparison
from pytest_trainsafe.judge.localize.words import told_names
from pytest_trainsafe.trace.reader import Trace

#: The kinds that an optimizer's step makes, of tensors named after a parameter.
_STEPPED = frozenset({"param", "master_param", "update", "optimizer_state"})


def has_whole_steps_only(trace: Trace) -> bool:
    """Whether the program marked no micro-batch."""
    return not any(step.microbatches for rank in trace.ranks for step in rank.steps)


def whole_steps(failed: Comparison) -> Located:
    """The report's rows on a comparison of whole steps."""
    wrong = [f.where for f in failed.findings if f.verdict == "fail" and f.where is not None]
    kinds = {id.kind for id in wrong}
    if kinds and kinds <= _STEPPED and failed.compared["main_grad"]:
        names = list(dict.fromkeys(_parameter(id) for id in wrong))
        text = (
            "every gradient that the optimizer is given agrees; the optimizer's step is wrong of "
            f"{told_names(names, 'parameter')}"
        )
        return Located((("faulty", text),), faults=tuple(("optimizer", name) for name in names))
    if kinds == {"loss"} and failed.compared["main_grad"]:
        text = "every gradient and update agrees; the loss that the program reports is wrong"
        return Located((("faulty", text),), faults=(("loss", "<program>"),))
    why = (
        "only whole steps were compared, so the fault may be in the data, the forward, the "
        "backward or the reduction of gradients; marking micro-batches (ctx.microbatch) lets them "
        "be told apart"
    )
    return Located((("not localised", why),))


def _parameter(id: TensorId) -> str:
    """The path of the parameter that a tensor belongs to."""
    if id.kind != "optimizer_state":
        return id.path
    leaf = id.name.split(".")[0]
    return f"{id.module}.{leaf}" if id.module else leaf
