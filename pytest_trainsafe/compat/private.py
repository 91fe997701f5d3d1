"""Whether this release of torch has the private names that a capability needs.

The other files of this folder look their names up through a Capability.  A name that a release
lacks switches off what needs it; `lacking` has a sentence for each such capability, and a recorded
Run notes these sentences in its trace as not compared.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch

#: The capabilities of this process, in the order of their creation.
_declared: list[Capability] = []


class Capability:
    """One thing that the package does with private names of torch.

    `off` says what does not happen in a release that lacks one of the names, as a clause: "writes
    are not noticed".
    """

    def __init__(self, off: str) -> None:
        self._off = off
        self._lacks: dict[str, None] = {}
        _declared.append(self)

    def of(self, module: str, name: str = "") -> Any:
        """What a name, which may have several parts, is in a module of torch; None if lacking.

        Without a name, the module itself.

        A capability that needs a name imports its module, so the module must be one that torch
        itself imports, or one that the caller is about to use.
        """
        found = _found(module, name)
        if found is None:
            self.lacks(f"{module}.{name}".removesuffix("."))
        return found

    def lacks(self, name: str) -> None:
        """Notes that this release lacks a name, as found out in a use of it."""
        self._lacks[name] = None

    @property
    def available(self) -> bool:
        """Whether no name is known to be lacking."""
        return not self._lacks

    @property
    def why(self) -> str:
        """A sentence that says what is off and for lack of which names; "" if nothing is."""
        if self.available:
            return ""
        return f"{self._off}: torch {torch.__version__} has no {' and no '.join(self._lacks)}"


def lacking() -> list[str]:
    """The sentences of all capabilities that this process has asked for and found to be off."""
    return [each.why for each in _declared if not each.available]


def _found(module: str, name: str) -> Any:
    try:
        found: Any = import_module(module)
        for part in name.split(".") if name else ():
            found = getattr(found, part)
    except (ImportError, AttributeError):
        return None
    return found
