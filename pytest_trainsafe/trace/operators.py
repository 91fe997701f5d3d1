"""The events of the operator ledger: every operator of one step, with exact hashes.

`judges/replay/determinism/instrument/operator_ledger.py` writes them for a RunSpec that names the
step, and `judges/replay/determinism/operator_look.py` compares those of two Runs.
"""

from __future__ import annotations

import re
from typing import Annotated

import msgspec

from pytest_trainsafe.core.layout import Count
from pytest_trainsafe.core.tensor_id import Number, Step
from pytest_trainsafe.trace.facts import Text

_HASH = re.compile(r"([0-9a-f]{32})?", re.ASCII)
_LINE = re.compile(r"([^\x00-\x1f]+:\d{1,9})?", re.ASCII)


class OperatorEvent(msgspec.Struct, frozen=True, tag="operator", omit_defaults=True):
    """A call of an operator: "aten.mul.Tensor".

    `inputs` and `outputs` are hashes of all its input and output tensors, "" if none can be
    read. `arguments` has the other arguments as text, shortened. `view` is true if the outputs
    are views of the inputs, so that nothing is computed. `at` is the innermost line outside of
    torch, and `user` the innermost line of the user's own code if `at` is in an installed
    package.
    """

    name: Text
    step: Step
    inputs: str = ""
    outputs: str = ""
    arguments: Text = ""
    microbatch: Number | None = None
    module: Text | None = None
    backward: bool = False
    view: bool = False
    at: Text = ""
    user: Text = ""

    @property
    def line(self) -> str:
        """The program's line that called the operator, "" if none did."""
        return self.user or self.at

    def fault(self) -> str:
        """What is wrong with this event; "" for a valid one."""
        if not (_HASH.fullmatch(self.inputs) and _HASH.fullmatch(self.outputs)):
            return "an operator has a malformed hash"
        sound = _LINE.fullmatch(self.at) and _LINE.fullmatch(self.user)
        return "" if sound else "an operator has a malformed file and line"


class OutsideRead(msgspec.Struct, frozen=True, tag="outside_read"):
    """The program's line `at` called the function `what`, whose result differs between processes.

    `what` may also start a thread, whose work may come at another time in every Run.  `before` is
    the number of operators that the rank had recorded until then.
    """

    what: Text
    at: Text
    before: Count

    def fault(self) -> str:
        """What is wrong with this event; "" for a valid one."""
        return "" if _LINE.fullmatch(self.at) else "it has a malformed file and line"


class OperatorCount(msgspec.Struct, frozen=True, tag="operator_count"):
    """How many operators the step called, and how many of them, from the first, were recorded."""

    called: Annotated[int, msgspec.Meta(ge=0, le=2**48)]
    recorded: Count
