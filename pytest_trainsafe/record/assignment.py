"""An Assignment: the Run that a group of ranks makes, its device, and its output folders."""

from __future__ import annotations

from typing import Literal

import msgspec

from pytest_trainsafe.trace.run_spec import RunSpec


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """Sent to every rank of a group.

    `trace` is the folder that the ranks record into, and `replayed` the trace of `spec.replay`,
    "" for none.  `checkpoint` is the folder of the checkpoint of `spec.resume`.  `checkpoints` is
    the folder of the Run's replay checkpoints, "" for one beside the trace.
    """

    spec: RunSpec
    trace: str
    device: Literal["cpu", "cuda"] = "cpu"
    replayed: str = ""
    checkpoint: str = ""
    checkpoints: str = ""
