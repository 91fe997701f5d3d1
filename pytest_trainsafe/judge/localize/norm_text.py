"""Words a wrong gradient norm or a wrong clip.  Called by `judge.localize.description`."""

from __future__ import annotations

from pytest_trainsafe.judge.compare.comparison import Comparison
from pytest_trainsafe.judge.compare.explain.common_factor import reference_clips
from pytest_trainsafe.judge.compare.explain.factor_text import factor_cause
from pytest_trainsafe.judge.compare.rung import Rung
from pytest_trainsafe.judge.localize.inputs import Compared


def norm_text(comparison: Comparison, rung: Rung, compared: Compared) -> str:
    """The sentence on a wrong gradient norm or a wrong clip."""
    factor, wrong = comparison.factor, comparison.wrong
    if factor is not None and factor.clips:
        agree = compared.has("param_grad") and not wrong["param_grad"]
        before = "each micro-batch's gradient agrees; " if agree else ""
        count = len(factor.scaled)
        return f"{before}{factor_cause(factor)}: one factor explains all {count} main gradients"
    if not wrong["grad_norm"]:
        return "the clipping is wrong: gradients agree before it, and differ after it"
    main = (id for id in rung.reference.ids() if id.kind == "main_grad")
    if reference_clips(rung, main):
        return (
            "the gradient norm is wrong, or all gradients are scaled before the norm is computed: "
            "gradients are compared after clipping, which hides such a factor"
        )
    right = compared.has("main_grad") and not (wrong["main_grad"] or wrong["unclipped_grad"])
    return f"the gradient norm is wrong{', although the gradients are right' if right else ''}"
