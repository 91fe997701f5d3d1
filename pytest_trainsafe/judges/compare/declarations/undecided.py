"""Finds proposed sums over ranks that the values cannot tell from a missing reduction.

A layer's output that is a partial sum until something reduces it makes every tensor after it right,
so these tensors confirm its layout.  Of a tensor from which nothing is computed, or of the loss
that ranks with the same samples report, the values are alike whether the program means to report a
term of a sum or forgets to reduce it.
"""

from __future__ import annotations

from collections.abc import Iterable

from pytest_trainsafe.core.layout import Partial
from pytest_trainsafe.core.tensor_id import TensorId, is_gradient_place
from pytest_trainsafe.core.usage import name_list
from pytest_trainsafe.judges.compare.comparison import Comparison
from pytest_trainsafe.judges.compare.declarations.suggest import MissingLayout
from pytest_trainsafe.judges.compare.rung import RungTraces

#: The roles of axes whose ranks have samples or tokens of their own, of which each may be a mean.
_DATA = frozenset({"dp", "cp", "ep"})


def undecided(rung: RungTraces, needs: Iterable[MissingLayout]) -> tuple[MissingLayout, ...]:
    """Those of the found layouts that a missing reduction would explain as well."""
    role = rung.candidate.sizes.mesh.role
    # A gradient comes back to each tensor from which the loss is computed.
    used = {(id.module, id.name) for id in rung.reference.ids() if id.kind == "activation_grad"}

    def is_confirmed(need: MissingLayout) -> bool:
        if need.section == "loss":
            return {role(axis) for axis in summed(need)} <= _DATA
        if need.section != "modules" or is_gradient_place(need.place):
            return True
        return (need.name, need.place) in used

    return tuple(need for need in needs if need.sums and not is_confirmed(need))


def reduced_parameters(rung: RungTraces, comparison: Comparison) -> frozenset[str]:
    """The parameters whose gradients are right after the reduction.

    `comparison` is that of the candidate with the found layouts.
    """
    wrong = {f.where.path for f in comparison.findings if f.verdict == "fail" and f.where}
    return frozenset(id.path for id in rung.candidate.ids() if id.kind == "main_grad") - wrong


def reduced_modules(
    rung: RungTraces, comparison: Comparison, needs: Iterable[MissingLayout]
) -> frozenset[tuple[str, str]]:
    """The outputs whose found sum something reduces: the last part of their module's name, and it.

    That is so if the first output of the module around one is right.  `comparison` is that of the
    candidate with the found layouts.
    """
    wrong = {f.where for f in comparison.findings if f.verdict == "fail"}
    firsts: dict[str, TensorId] = {}
    for id in rung.reference.ids():
        if id.kind == "activation":
            firsts.setdefault(id.module, id)
    sums = {need.name for need in needs if need.sums}

    def is_reduced(need: MissingLayout) -> bool:
        if not need.sums or need.section != "modules" or is_gradient_place(need.place):
            return False
        around, _, _ = need.name.rpartition(".")
        while around and around not in firsts:
            around, _, _ = around.rpartition(".")
        return around in firsts and around not in sums and firsts[around] not in wrong

    return frozenset(_leaf(need) for need in needs if is_reduced(need))


def _leaf(need: MissingLayout) -> tuple[str, str]:
    return need.name.rpartition(".")[2], need.place


def is_among(need: MissingLayout, outputs: frozenset[tuple[str, str]]) -> bool:
    """Whether a found layout is that of one of the outputs that `reduced_modules` returned."""
    return need.section == "modules" and _leaf(need) in outputs


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
    these = "this output" if len(of_modules) == 1 else "these outputs"
    return (
        f"a reduction over {axes} is missing in {name_list(of_modules, 'tensor')}; the loss is not "
        f"computed from {these}, so no later tensor shows which is true"
    )
