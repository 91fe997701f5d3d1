"""What is known of a slip."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Known:
    """A slip: the rule that it breaks, in one sentence, and its usual cause.

    If it is `often` meant, the rule is checked only on programs that were seen to keep it.
    """

    rule: str
    causes: str
    often: bool = False
