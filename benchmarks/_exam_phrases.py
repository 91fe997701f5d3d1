"""Phrases of messages on ranks that name a cause, for the patterns of several sets of the exam."""

from __future__ import annotations

#: That something differs between ranks, in either order of the words.
APART = (
    r"\b(ranks?|replicas?|processes|shards?)\b.*(differ|diverg|apart|unequal|not equal|in sync)",
    r"(differ|diverg|apart|unequal|not equal|drift|in sync).*\b(ranks?|replicas?|processes)\b",
    r"(same|equal|identical|agree).*\b(ranks?|replicas?|processes)\b",
)
#: That gradients are not combined over ranks as they should be.
REDUCED = (
    r"grad.*(all_?reduce|reduc|averag|synchroni|summed|divided)",
    r"(all_?reduce|reduc|averag|synchroni|summed|divided).*grad",
)
