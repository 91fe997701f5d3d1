"""OpenDifference: one silent difference in a current DeepSpeed.  Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pytest_trainsafe.core.tensor_id import Kind

#: Axes of a Point, or arguments of the program.
Where = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class OpenDifference:
    """One difference from plain PyTorch that is not fixed upstream, although it is explained.

    A script docs/upstream/deepspeed/NAME.py reproduces the difference `name`.  `upstream` is the
    number of the issue or pull request about it, 0 if none was found.  `program` names the program
    that shows it at the Point `where`, with `arguments`, and `candidate_arguments` for the
    candidate only; it is "" if only the script shows it.  `right` is the most similar Point where
    the difference does not appear.  `tensor` and `kind` name the first wrong tensor, in step
    `step`; -1 is before the first step.
    """

    name: str
    what: str
    upstream: int = 0
    program: str = ""
    where: Where = field(default_factory=dict)
    right: Where = field(default_factory=dict)
    arguments: Where = field(default_factory=dict)
    candidate_arguments: Where = field(default_factory=dict)
    tensor: str = ""
    kind: Kind = "main_grad"
    step: int = 0
