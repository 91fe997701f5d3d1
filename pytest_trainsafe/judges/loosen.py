"""A user's factor on the tolerance of some tensors, with a reason that reports show."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import msgspec

from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.core.usage import shown
from pytest_trainsafe.errors import ArgumentError, ArgumentTypeError

_UPDATED = ("param", "master_param")


@dataclass(frozen=True, slots=True)
class Loosen:
    """Multiplies the allowed error of matching tensors by `factor`; reports show the `reason`.

    `tensors` is an `fnmatch` pattern for the path of a tensor ("*.router.weight").  `kind` is a
    pattern for its kind ("main_grad", "*_grad"); the change of a parameter in a step has the kind
    "update".  Raises ArgumentError if the factor is not finite or below 1, or the reason is empty.
    """

    tensors: str
    factor: float
    reason: str
    kind: str = "*"

    def __post_init__(self) -> None:
        texts = {"tensors": self.tensors, "reason": self.reason, "kind": self.kind}
        for name, given in texts.items():
            if not isinstance(given, str):
                raise ArgumentTypeError(
                    f"Loosen takes text as its {name}, not {shown(given)}; for example "
                    'Loosen("*.router.weight", factor=3, reason="ties of top-k break differently")'
                )
        if isinstance(self.factor, bool) or not isinstance(self.factor, (int, float)):
            raise ArgumentTypeError(
                f"Loosen takes a number as its factor, not {shown(self.factor)}"
            )
        if not 1 <= self.factor < math.inf:
            raise ArgumentError(f"Loosen takes a finite factor of at least 1, not {self.factor!r}")
        if not self.reason.strip():
            raise ArgumentError(
                f"loosening the tolerance of {self.tensors!r} needs a reason; the report shows it"
            )

    def matches(self, id: TensorId) -> bool:
        """Whether this entry applies to a tensor."""
        return fnmatchcase(id.path, self.tensors) and fnmatchcase(id.kind, self.kind)


def require_used(loosen: Sequence[Loosen], ids: Iterable[TensorId]) -> None:
    """Raise ArgumentError for an entry that matches none of the reference's tensors."""
    known = set(ids)
    updates = {msgspec.structs.replace(id, kind="update") for id in known if id.kind in _UPDATED}
    for entry in loosen:
        if not any(entry.matches(id) for id in known | updates):
            raise ArgumentError(
                f"Loosen({entry.tensors!r}, kind={entry.kind!r}) matches no tensor of the "
                "reference; correct the pattern (fnmatch syntax, matched against full names) or "
                "remove the entry"
            )
