"""The result that a program of a silent error returns to a test.  Does not import torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Outcome:
    """The loss of every step, and the facts by which a test sees the consequence of an error."""

    losses: list[float] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
