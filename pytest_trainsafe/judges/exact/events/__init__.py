"""The events of exact Runs: which operators a rank met, and the file with a rank's decisions.

`instrument/rungs.py` writes them inside the ranks; the judge reads what was met, and the ranks of
an exact Run read the decisions.  `decisions` writes and reads the file.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from pytest_trainsafe.trace.events import register

_Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
_Name = Annotated[str, msgspec.Meta(max_length=200)]


@register
class DecisionsFile(msgspec.Struct, frozen=True, tag="decisions_file"):
    """States that a rank's file of decisions is complete: its size in bytes, and its hash."""

    bytes: _Count
    hash: Annotated[str, msgspec.Meta(max_length=32)]


@register
class OperatorsMet(msgspec.Struct, frozen=True, tag="operators_met"):
    """How often each operator computed numbers, and how many values a rank hashed.

    `multiplications` is how many products, quotients, roots and functions of tensors it computed.
    `decisions` is the number of decisions that the rank took, `decided` a hash of them (those that
    are fractions left out), and `integers` one of all integers that operators got with numbers.
    """

    calls: Annotated[dict[_Name, _Count], msgspec.Meta(max_length=4096)]
    hashed: _Count
    multiplications: _Count
    decisions: _Count
    decided: Annotated[str, msgspec.Meta(max_length=32)] = ""
    integers: Annotated[str, msgspec.Meta(max_length=32)] = ""
