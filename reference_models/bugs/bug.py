"""The catalogue's entry of one planted bug.  Does not import torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Literal

from pytest_trainsafe.core.point import Point
from pytest_trainsafe.core.tensor_id import Kind


@dataclass(frozen=True, slots=True)
class Bug:
    """One bug: what goes wrong, where it came from, at which Points, and where it shows first.

    `program` is the module of `reference_models` whose `train(..., bug=name)` plants it, called
    with `arguments` as well.  `category` is TTrace's: WD wrong data, WC wrong communication, MC
    missing communication.  `module`, `tensor` and `kind` name the first wrong tensor, in step
    `step` and, where the kind has one, micro-batch 0; `pattern` names what it is in relation to
    the right one, "" for nothing simple.  `phase` and `faults` are where a localisation must end:
    `fnmatch` patterns of the modules or parameters at fault, of which each found one matches one.
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
