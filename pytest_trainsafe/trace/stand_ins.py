"""Finds modules on a pipeline stage that are only placeholders for modules of another stage.

A model that is built whole on every stage often has an `nn.Identity` for each module that the
stage does not hold, and calls it.  The output of the `nn.Identity` has the same name as the
other stage's output but must not be compared with it.  Called by the reader.
"""

from __future__ import annotations

from collections.abc import Mapping

from pytest_trainsafe.trace.schema import ModuleEvent

Modules = Mapping[str, ModuleEvent]


def stand_ins(stages: Mapping[int, Modules]) -> dict[int, frozenset[str]]:
    """By stage, the modules that are placeholders for modules of the same name on another stage.

    A placeholder has no parameters and no children, and its class differs from that of the other
    stage's module.  The latter has parameters or children, or the placeholder is an `Identity`.
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
    """The names of modules that have children."""
    found = {name.rpartition(".")[0] for name in modules if name}
    return found | {""} if len(modules) > 1 else found
