"""The result that a program of a silent error returns to a test.  Does not import torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Outcome:
    """The results of a training: the loss of every step, and `facts` that a test can check.

    `facts` has other results, by name, in which an error of the program shows.
    """

    losses: list[float] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
