"""What of a rewritten rung was compared, so that only that is said to agree.

Called by `localize.words`.
"""

from __future__ import annotations

from functools import cached_property
from typing import Literal

from pytest_trainsafe.compare.judge import local_name
from pytest_trainsafe.compare.rung import Rung
from pytest_trainsafe.localize.stages import is_input
from pytest_trainsafe.trace.schema import INITIAL, TensorId

#: Modules that are named where some were not compared.
MOST_NAMES = 3


class Compared:
    """The tensors that a candidate and its reference both have."""

    def __init__(self, rung: Rung) -> None:
        self.rung = rung
        self.local = {name for rank in rung.candidate.ranks for name in rank.note("local")}

    def has(self, kind: str) -> bool:
        """Whether any tensor of a kind was compared."""
        return any(id.kind == kind and id.step != INITIAL for id in self._both)

    def gradient(self, path: str) -> bool:
        """Whether any micro-batch's gradient of a parameter was compared."""
        return path in self._gradients

    def inputs(self, module: str) -> bool:
        """Whether any input of a module was compared."""
        return any(
            id.module == module and id.kind == "activation" and is_input(id) for id in self._both
        )

    def modules(self, kind: Literal["activation", "activation_grad"]) -> str:
        """`every module`, or those that were compared where some were not; "" for none."""
        owed = self._having(kind, list(self.rung.reference.ids()))
        found = self._having(kind, list(self._both))
        lacking = [module or "the root module" for module in owed if module not in found]
        if not found:
            return ""
        if not lacking:
            return "every module"
        named = ", ".join(lacking[:MOST_NAMES])
        more = f" and {len(lacking) - MOST_NAMES} more" if len(lacking) > MOST_NAMES else ""
        return f"the {len(found)} modules that were compared (not {named}{more})"

    def caller(self, module: str) -> str | None:
        """The module that runs another in the reference, None for the program itself."""
        notes = [note for rank in self.rung.reference.ranks for note in rank.note("caller")]
        return dict(note.split("=", 1) for note in reversed(notes)).get(module)

    def _having(self, kind: str, ids: list[TensorId]) -> dict[str, None]:
        return dict.fromkeys(id.module for id in ids if id.kind == kind and not is_input(id))

    @cached_property
    def _both(self) -> frozenset[TensorId]:
        return frozenset(
            id
            for id in self.rung.reference.ids()
            if self.rung.candidate.holders(id) and local_name(id) not in self.local
        )

    @cached_property
    def _gradients(self) -> frozenset[str]:
        return frozenset(id.path for id in self._both if id.kind == "param_grad")
