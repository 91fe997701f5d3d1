"""What a program of a silent error returns to whoever checks it.  Does not import torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Outcome:
    """The loss of every step, and by name what a test needs to see the consequence of an error."""

    losses: list[float] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
