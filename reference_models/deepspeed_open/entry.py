"""OpenDifference: one silent difference in a current DeepSpeed.  Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pytest_trainsafe.core.tensor_id import Kind

#: Axes of a Point, or arguments of the program.
Where = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class OpenDifference:
    """One silent difference between DeepSpeed and plain PyTorch that DeepSpeed has not fixed.

    docs/upstream/deepspeed.md explains the difference, and the script
    docs/upstream/deepspeed/NAME.py, where NAME is `name`, reproduces it.  `upstream` is the number
    of the issue or pull request about it, 0 if none was found.
    `program` names the program that shows the difference, or is "" if only the script shows it.
    The program shows it at the Point `where`, with `arguments` in both Runs and
    `candidate_arguments` in the candidate only.  `right` is the most similar Point where the
    difference does not appear.  `tensor` and `kind` name the first wrong tensor, in step `step`;
    -1 is before the first step.
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
