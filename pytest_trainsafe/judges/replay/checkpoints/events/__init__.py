"""The events of replay checkpoints: where a Run saved one, and where a Run continued from one.

`judges/replay/checkpoints/instrument/` writes them inside the ranks.
`judges/replay/checkpoints/runs/` uses them to choose a checkpoint and to verify a replay.
`file` writes and reads the file with the state of one rank.
"""

from __future__ import annotations

import re

import msgspec

from pytest_trainsafe.core.layout import Count
from pytest_trainsafe.core.tensor_id import Step
from pytest_trainsafe.trace.events import register
from pytest_trainsafe.trace.facts import Text

_FOLDER = re.compile(r"(step-[0-9]{8})?", re.ASCII)
_HASH = re.compile(r"[0-9a-f]{32}", re.ASCII)

#: The most generators, states or counters that a checkpoint names.
_MOST = 4096


class HeldPart(msgspec.Struct, frozen=True, omit_defaults=True):
    """The name and the size in bytes of one part of a checkpoint.

    A part is a generator, a state, or a function that `ReplayCheckpoint.regenerates` wraps.
    `calls` is the number of the function's calls that `fast_forward` can repeat.
    """

    name: Text
    bytes: Count
    calls: Count = 0


@register
class ReplayCheckpointEvent(
    msgspec.Struct, frozen=True, tag="replay_checkpoint", omit_defaults=True
):
    """The program saved a ReplayCheckpoint: `step` is the number of the next step.

    `folder` is the name of its folder among the Run's checkpoints, or "" if the program saved
    it elsewhere. `hash` is the hash of the rank's file, and `bytes` its size.
    """

    step: Step
    folder: str
    hash: str
    bytes: Count
    generators: tuple[HeldPart, ...] = ()
    states: tuple[HeldPart, ...] = ()
    regenerated: tuple[HeldPart, ...] = ()
    counters: tuple[Text, ...] = ()

    def fault(self) -> str:
        """What is wrong with this event; "" for a valid one."""
        if not _FOLDER.fullmatch(self.folder):
            return "its folder is not the name of a checkpoint's folder"
        if not _HASH.fullmatch(self.hash):
            return "it has a malformed hash"
        parts = (self.generators, self.states, self.regenerated, self.counters)
        return "it names too many parts" if any(len(part) > _MOST for part in parts) else ""


@register
class RestartEvent(msgspec.Struct, frozen=True, tag="replay_restart"):
    """The program continues from a ReplayCheckpoint: `step` is the number of the next step.

    Written when the program loads the checkpoint, and after each `fast_forward` that follows.
    `hash` is the hash of the rank's file in the checkpoint.
    """

    step: Step
    hash: str

    def fault(self) -> str:
        """What is wrong with this event; "" for a valid one."""
        return "" if _HASH.fullmatch(self.hash) else "it has a malformed hash"
