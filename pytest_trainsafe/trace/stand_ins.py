"""Finds modules of pipeline stages that only stand in for what another stage holds.

A model that is built whole on every stage often has `nn.Identity` in the place of what the stage
does not hold, and calls it.  What it returns has the name of another stage's output and is none.
Called by the reader.
"""

from __future__ import annotations

from collections.abc import Mapping

from pytest_trainsafe.trace.schema import ModuleEvent

Modules = Mapping[str, ModuleEvent]


def stand_ins(stages: Mapping[int, Modules]) -> dict[int, frozenset[str]]:
    """By stage, the modules that stand in for those of the same name on another stage.

    One has no parameters and no modules of its own, and another class than the other stage's,
    which has either; an `Identity` stands in for a module of any other class.
    """
    found = {}
    containers = {stage: _containers(modules) for stage, modules in stages.items()}
    for stage, modules in stages.items():
        found[stage] = frozenset(
            name
            for name, module in modules.items()
            if not module.parameters
            and name not in containers[stage]
            and any(
                name in others
                and others[name].cls != module.cls
                and (
                    module.cls == "Identity" or others[name].parameters or name in containers[other]
                )
                for other, others in stages.items()
                if other != stage
            )
        )
    return found


def _containers(modules: Modules) -> set[str]:
    """The modules that have modules of their own."""
    found = {name.rpartition(".")[0] for name in modules if name}
    return found | {""} if len(modules) > 1 else found
