"""An Assignment: the Run that a group of ranks makes, its device, and its output folders."""

from __future__ import annotations

from typing import Literal

import msgspec

from pytest_trainsafe.launch.task import Function, Script
from pytest_trainsafe.trace.run_spec import RunSpec

#: The folder of a Run's replay checkpoints, beside its trace.
CHECKPOINTS = "checkpoints"


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """The job that every rank of a group receives.

    `spec` is the Run to make, and `device` the kind of device to use.  `trace` is the folder that
    the ranks record into.  `replayed` is the folder of the trace that `spec.replay` names, or "" if
    nothing is replayed.  `checkpoint` is the folder of the checkpoint that the Run saves or resumes
    from, if `spec.resume` is set.  `checkpoints` is the folder for the Run's replay checkpoints, or
    "" for a folder beside the trace.  `reads` is the path, without its end, of the files in which
    processes that the ranks fork note what they read; "" if nothing is noted.
    """

    spec: RunSpec
    trace: str
    device: Literal["cpu", "cuda"] = "cpu"
    replayed: str = ""
    checkpoint: str = ""
    checkpoints: str = ""
    reads: str = ""

    @property
    def program(self) -> Function | Script:
        """The program of the Run, as ranks load it."""
        spec = self.spec
        if spec.script:
            return Script(spec.script, spec.script_args)
        return Function(spec.program, spec.file)
