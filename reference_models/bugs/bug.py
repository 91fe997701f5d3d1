"""The description of one bug that can be planted.  Does not import torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Literal

from pytest_trainsafe.core.point import Point
from pytest_trainsafe.core.tensor_id import Kind


@dataclass(frozen=True, slots=True)
class Bug:
    """One bug: what goes wrong, where the bug comes from, when it acts, and where it shows first.

    `program` is the module of `reference_models` whose `train(..., bug=name)` plants it; it is
    called with `arguments` as well.  `sweep` has further axes that tests of the bug must sweep,
    besides the program's axes in `corpus.RANKS`.  `ttrace` is the bug's number in TTrace, 0
    if it is not one of TTrace's, and `category` its category there: WD for wrong data, WC for wrong
    communication, MC for missing communication.
    `what` says what goes wrong, `origin` is the address of the report, and `when` says at which
    Points the bug acts; `triggers` decides that for a Point.  `module`, `tensor` and `kind` name
    the first wrong tensor, which is in step `step` and, if its kind has micro-batches, in
    micro-batch 0.  `pattern` is the relation of the wrong tensor to the correct one, such as
    "scaled", or "" if there is no simple one.
    Localisation names faulty modules or parameters, each with the phase of training that goes wrong
    there: the phase must be `phase`, such as "forward" or "reduction", and each name must match one
    of the `fnmatch` patterns in `faults`.
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
    sweep: Mapping[str, Sequence[str | int]] = field(default_factory=dict)

    def localised(self, found: Iterable[Sequence[str]]) -> bool:
        """Whether localisation found this bug and nothing else.

        `found` has a pair for each place that localisation names: the phase, and the module or
        parameter.  False if `found` is empty.
        """
        pairs = [(phase, target) for phase, target in found]
        return bool(pairs) and all(
            phase == self.phase and any(fnmatchcase(target, each) for each in self.faults)
            for phase, target in pairs
        )
