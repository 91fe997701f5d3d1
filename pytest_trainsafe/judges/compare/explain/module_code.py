"""Locates the code of a module for a report.  Called by the compare judge and by `localize`."""

from __future__ import annotations

import os
from collections.abc import Mapping

from pytest_trainsafe.trace.schema import ModuleEvent

#: Bugs are assumed to be in callers of torch's own modules (`torch.nn.Linear`), not in them.
_TORCH = f"{os.sep}site-packages{os.sep}torch{os.sep}"


def module_code(modules: Mapping[str, ModuleEvent], path: str) -> tuple[str, str]:
    """The class and the "file:line" of a module, or of its nearest parent that is not torch's own.

    If the module's forward was replaced, the "file:line" is that of the replacement.  Both are ""
    if neither the module nor a parent has known code.
    """
    while True:
        event = modules.get(path)
        if event is not None and event.forward:
            return f"{event.cls}, with a replaced forward", event.forward
        if event is not None and event.source and _TORCH not in event.source:
            return event.cls, event.source
        if not path:
            return "", ""
        path = path.rpartition(".")[0]
