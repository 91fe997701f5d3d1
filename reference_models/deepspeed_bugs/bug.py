"""DeepSpeedBug: one entry of the catalogue.  Imports neither torch nor DeepSpeed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from pytest_trainsafe.core.tensor_id import Kind

#: Axes of a Point and arguments of the program, which both the reference and the candidate get.
Where = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class DeepSpeedBug:
    """One silent bug of a DeepSpeed release, or of a branch of DeepSpeed.

    `number` is the number of the pull request that fixed the bug, or of a report of it.  `what`
    says what goes wrong.  `release` is a release that shows the bug, "" if only a planted copy
    does.  `wrong` names the releases in which the bug was observed, such as "0.12.5 to 0.13.1", or
    the branch; `right` is the first release in which the bug was not observed.  `planted` says that
    `plants.py` can put the bug into the installed DeepSpeed.  `triggers` is a Point of `program`
    where the bug acts, and `silent` the most similar Point where it does not.  `tensor` and `kind`
    name the first wrong tensor, in step `step`.
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
