"""What the DeepSpeed catalogue says of one bug.  Knows nothing of torch or DeepSpeed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from pytest_trainsafe.core.tensor_id import Kind

#: A Point: axes and arguments of the program, which both Runs are given.
Where = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class DeepSpeedBug:
    """One silent bug that DeepSpeed shipped, or whose fix was found by a user of its branch.

    `number` is that of the pull request that mended it, or of its report.  `release` is the one it
    is shown in, "" where only a plant shows it.  `wrong` says where it was seen, `right` names the
    first release that was seen without it.  `planted` says that `plants.py` can put it into the
    installed DeepSpeed, by its own mechanism.
    `triggers` is a Point of `program` where it acts and `silent` the nearest where it does not.
    `tensor` and `kind` name the first wrong tensor, in step `step`.
    """

    name: str
    number: int
    area: Literal["reduction", "accumulation", "clipping", "optimizer", "schedule", "model"]
    what: str
    wrong: str
    right: str
    release: str
    triggers: Where
    silent: Where
    kind: Kind
    tensor: str
    step: int = 0
    planted: bool = False
    program: str = "small"
    arguments: Where = field(default_factory=dict)

    @property
    def link(self) -> str:
        """The URL of the upstream issue; GitHub redirects it for pull requests."""
        return f"https://github.com/deepspeedai/DeepSpeed/issues/{self.number}"
