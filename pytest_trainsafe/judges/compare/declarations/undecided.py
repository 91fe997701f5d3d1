"""Finds proposed sums over ranks that the values cannot tell from a missing reduction.

A layer's output that is a partial sum until something reduces it makes every tensor after it right,
so these tensors confirm its layout.  Of a tensor from which nothing is computed, or of the loss
that ranks with the same samples report, the values are alike whether the program means to report a
term of a sum or forgets to reduce it.
"""

from __future__ import annotations

from collections.abc import Iterable

from pytest_trainsafe.core.layout import Partial
from pytest_trainsafe.core.tensor_id import is_gradient_place
from pytest_trainsafe.core.usage import name_list
from pytest_trainsafe.judges.compare.comparison import Comparison
from pytest_trainsafe.judges.compare.declarations.suggest import MissingLayout
from pytest_trainsafe.judges.compare.rung import RungTraces

#: The roles of axes whose ranks have samples or tokens of their own, of which each may be a mean.
_DATA = frozenset({"dp", "cp", "ep"})


def undecided(rung: RungTraces, needs: Iterable[MissingLayout]) -> tuple[MissingLayout, ...]:
    """Those of the found layouts that a missing reduction would explain as well."""
    return tuple(need for need in needs if need.sums and not _is_confirmed(rung, need))


def _is_confirmed(rung: RungTraces, need: MissingLayout) -> bool:
    if need.section == "loss":
        role = rung.candidate.sizes.mesh.role
        return {role(axis) for axis in summed(need)} <= _DATA
    if need.section != "modules" or is_gradient_place(need.place):
        return True
    # A gradient comes back to each tensor from which the loss is computed.
    return any(
        (id.kind, id.module, id.name) == ("activation_grad", need.name, need.place)
        for id in rung.reference.ids()
    )


def is_reduced(rung: RungTraces, comparison: Comparison, need: MissingLayout) -> bool:
    """Whether the gradients of a parameter that are terms of a sum make a right gradient.

    `comparison` is that of the candidate with the found layouts.
    """
    if need.section != "parameters":
        return False
    wrong = {f.where.path for f in comparison.findings if f.verdict == "fail" and f.where}
    reduced = {id.path for id in rung.candidate.ids() if id.kind == "main_grad"}
    return need.name in reduced - wrong


def summed(need: MissingLayout) -> tuple[str, ...]:
    """The axes over which the found layout sums or averages."""
    return tuple(dict.fromkeys(p.axis for p in need.added if isinstance(p, Partial)))


def alternative(needs: Iterable[MissingLayout]) -> str:
    """What else explains layouts that are undecided: a sentence for a report."""
    needs = tuple(needs)
    axes = " and ".join(dict.fromkeys(axis for need in needs for axis in summed(need)))
    of_modules = [f"{need.name}.{need.place}" if need.name else need.place for need in needs]
    if any(need.section == "loss" for need in needs):
        return (
            f"a reduction over {axes} is missing where the reported loss is computed: these ranks "
            "have the same samples, but report different losses"
        )
    return (
        f"a reduction over {axes} is missing in {name_list(of_modules, 'tensor')}; the loss is not "
        "computed from this output, so no later tensor shows which is true"
    )
