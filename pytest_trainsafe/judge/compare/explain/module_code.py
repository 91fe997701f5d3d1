"""The code of a module, as a report names it.  Called by the compare judge and by `localize`."""

from __future__ import annotations

import os
from collections.abc import Mapping

from pytest_trainsafe.trace.schema import ModuleEvent

#: Torch's own modules (`torch.nn.Linear`) are not where a bug is; what uses them is.
_TORCH = f"{os.sep}site-packages{os.sep}torch{os.sep}"


def module_code(modules: Mapping[str, ModuleEvent], path: str) -> tuple[str, str]:
    """The class and the "file:line" of a module, or of the nearest around it that is not torch's.

    A forward that was set in place of the class's own is the module's code.  Both are "" where no
    module around it has code that is known.
    """
    while True:
        event = modules.get(path)
        if event is not None and event.forward:
            return f"{event.cls}, whose forward is replaced", event.forward
        if event is not None and event.source and _TORCH not in event.source:
            return event.cls, event.source
        if not path:
            return "", ""
        path = path.rpartition(".")[0]
