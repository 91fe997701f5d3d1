"""What is known of one silent difference in a current DeepSpeed.  Knows nothing of torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pytest_trainsafe.core.tensor_id import Kind

#: A Point: axes of the program.
Where = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class OpenDifference:
    """One difference from plain PyTorch that is open upstream: seen, explained, not mended.

    `name` is that of its reproduction, docs/upstream/deepspeed/NAME.py.  `upstream` is the number
    of the issue or pull request about it, 0 where none was found.  `program` is the module that
    shows it at the Point `where`, with `arguments` (and for the candidate alone
    `candidate_arguments`), and `right` the nearest Point where it is not; "" where only the
    reproduction shows it.  `tensor` and `kind` name the first wrong tensor, in step `step`; -1 is
    before the first.
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
