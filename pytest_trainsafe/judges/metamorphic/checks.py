"""The check of metamorphic relations that can be inconclusive, and what it then means."""

from __future__ import annotations

CHECKS = {
    "relation:effect": "the changed Run records the same bits, so the program ignores the change",
}
