"""The catalogue's entry of one bug that can be planted. Does not import torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Literal

from pytest_trainsafe.core.point import Point
from pytest_trainsafe.core.tensor_id import Kind


@dataclass(frozen=True, slots=True)
class Bug:
    """One bug: what goes wrong, where it was reported, where it acts, and where it shows first.

    `what` describes the bug, `origin` is its report, `when` describes the Points at which it acts,
    and `triggers` is whether it acts at a Point. `program` is the module of `reference_models`
    whose `train(..., bug=name)` plants it; `arguments` are passed to `train` as well. `category`
    is TTrace's: WD (wrong data), WC (wrong communication) or MC (missing communication).
    `module`, `tensor` and `kind` name the first wrong tensor, in step `step` and, if its kind
    belongs to a micro-batch, in micro-batch 0. `pattern` is its relation to the correct tensor,
    such as "scaled", or "" if there is no simple one. A localisation is correct if it finds the
    phase `phase` and only modules or parameters that match one of the `fnmatch` patterns `faults`.
    """

    name: str
    ttrace: int
    category: Literal["WD", "WC", "MC"]
    origin: str
    what: str
    when: str
    triggers: Callable[[Point], bool]
    module: str
    tensor: str
    kind: Kind
    phase: str
    faults: tuple[str, ...]
    pattern: str = ""
    step: int = 0
    program: str = "gpt"
    arguments: Mapping[str, object] = field(default_factory=dict)

    def localised(self, found: Iterable[Sequence[str]]) -> bool:
        """Whether a localisation's (phase, target) pairs all match this bug; False if empty."""
        pairs = [(phase, target) for phase, target in found]
        return bool(pairs) and all(
            phase == self.phase and any(fnmatchcase(target, each) for each in self.faults)
            for phase, target in pairs
        )
