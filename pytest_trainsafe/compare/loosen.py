"""A user's own allowance for some tensors: a factor, and the reason for it, which reports show."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

from pytest_trainsafe.trace.schema import TensorId


@dataclass(frozen=True, slots=True)
class Loosen:
    """Multiply the allowance of matching tensors by `factor`, because of `reason`.

    `tensors` is an `fnmatch` pattern over a tensor's path ("*.router.weight"); `kind` limits it
    to one kind of tensor ("main_grad").  ValueError for a factor below 1 or an empty reason.
    """

    tensors: str
    factor: float
    reason: str
    kind: str = "*"

    def __post_init__(self) -> None:
        if not self.factor >= 1:
            raise ValueError(f"Loosen takes a factor of at least 1, not {self.factor!r}")
        if not self.reason.strip():
            raise ValueError(
                f"loosening the tolerance of {self.tensors!r} needs a reason; the report shows it"
            )

    def matches(self, id: TensorId) -> bool:
        """Whether this loosens the tensor."""
        return fnmatchcase(id.path, self.tensors) and fnmatchcase(id.kind, self.kind)
