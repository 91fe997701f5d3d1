"""What of a rewritten rung was compared, so that only that is said to agree.

Called by `report.located_words`.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Literal

from pytest_trainsafe.core.tensor_id import INITIAL, TensorId
from pytest_trainsafe.judge.compare.rung import Rung
from pytest_trainsafe.judge.localize.stages import is_input
from pytest_trainsafe.trace.local_places import is_local


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

    @cached_property
    def parameters(self) -> int:
        """How many parameters were compared."""
        return len({id.path for id in self._both if id.kind == "param"})

    def inputs(self, module: str) -> bool:
        """Whether any input of a module was compared."""
        return any(
            id.module == module and id.kind == "activation" and is_input(id) for id in self._both
        )

    def modules(self, *kinds: Literal["activation", "activation_grad"]) -> str:
        """`every module`, or those whose tensors of all kinds were compared; "" for none."""
        owed: dict[str, None] = {}
        lacking: dict[str, None] = {}
        for kind in kinds:
            due = self._having(kind, self.rung.reference.ids())
            found = self._having(kind, self._both)
            owed |= due
            lacking |= {module: None for module in due if module not in found}
        if len(lacking) == len(owed):
            return ""
        if not lacking:
            return "every module"
        named = next(iter(lacking)) or "the root module"
        more = f" and {len(lacking) - 1} more" if len(lacking) > 1 else ""
        return f"the {len(owed) - len(lacking)} modules that were compared (not {named}{more})"

    def caller(self, module: str) -> str | None:
        """The module that runs another in the reference, None for the program itself."""
        notes = [note for rank in self.rung.reference.ranks for note in rank.note("caller")]
        return dict(note.split("=", 1) for note in reversed(notes)).get(module)

    def _having(self, kind: str, ids: Iterable[TensorId]) -> dict[str, None]:
        return dict.fromkeys(id.module for id in ids if id.kind == kind and not is_input(id))

    @cached_property
    def _both(self) -> frozenset[TensorId]:
        return frozenset(
            id
            for id in self.rung.reference.ids()
            if self.rung.candidate.holders(id) and not is_local(id, self.local)
        )

    @cached_property
    def _gradients(self) -> frozenset[str]:
        return frozenset(id.path for id in self._both if id.kind == "param_grad")
