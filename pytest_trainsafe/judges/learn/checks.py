"""The check of learned invariants that can be inconclusive, and what it then means."""

from __future__ import annotations

CHECKS = {
    "learn:nothing": "no invariant of the packs applies to the run",
}
