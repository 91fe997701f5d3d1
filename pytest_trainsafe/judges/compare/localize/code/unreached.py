"""Finds where gradients end: the module whose output none reaches, unlike in the reference.

Called by `judges.compare.localize.blame` if the candidate has no gradients of some parameters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_trainsafe.core.tensor_id import Kind, TensorId
from pytest_trainsafe.judges.compare.explain.module_code import module_code
from pytest_trainsafe.judges.compare.localize.stages import is_input
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.trace.reader import Trace


@dataclass(frozen=True, slots=True)
class Unreached:
    """The module whose output no gradient reaches, and the module whose code is at fault for it.

    That is the caller, or else the module itself, which may detach its own output.
    """

    module: str
    target: str


def unreached(
    rung: RungTraces, lacking: Sequence[TensorId], callers: Mapping[str, str]
) -> Unreached | None:
    """Where the gradients end of which the candidate has none, `lacking` of parameters.

    None if it has some of them, if gradients reach the module of one, or if the program itself
    calls the module.
    """
    if not lacking or any(rung.candidate.holders(id) for id in lacking):
        return None
    first = lacking[0]
    ran = _modules(rung.candidate, "activation", first)
    reached = _modules(rung.candidate, "activation_grad", first)
    lost = [
        module
        for module in _modules(rung.reference, "activation", first)
        if module in ran and module not in reached
        if module in _modules(rung.reference, "activation_grad", first)
    ]
    if not all(id.module in lost for id in lacking):
        return None
    outer = [module for module in lost if callers.get(module) not in lost]
    if callers.get(outer[-1]) is None:
        return None
    return Unreached(outer[-1], _at_fault(rung.candidate, outer[-1], callers, {*reached}))


def _at_fault(candidate: Trace, module: str, callers: Mapping[str, str], reached: set[str]) -> str:
    """The module, or its caller if its code is torch's, or others of its class are right."""
    modules = {name: each for rank in candidate.ranks for name, each in rank.modules.items()}
    own = modules.get(module)
    if own is None or module_code(modules, module)[1] != own.source:
        return callers[module]
    same = (name for name, each in modules.items() if each.source == own.source)
    return callers[module] if reached.intersection(same) else module


def _modules(trace: Trace, kind: Kind, at: TensorId) -> dict[str, None]:
    """The modules with an output, or a gradient of one, in a tensor's micro-batch, in order."""
    return dict.fromkeys(
        id.module
        for id in trace.ids()
        if id.kind == kind and not is_input(id)
        if (id.step, id.microbatch) == (at.step, at.microbatch)
    )


def unreached_text(module: str, target: str, cls: str) -> str:
    """The sentence on a module whose output no gradient reaches; `cls` is the class at fault."""
    by = f"{cls}.forward detaches it" if cls and "," not in cls else "its caller detaches it"
    if module == target:
        by += ", or its caller does"
    return (
        f"no gradient reaches the output of {module}, unlike in the reference, so the parameters "
        f"before it get none: {by}, or computes without gradients"
    )
