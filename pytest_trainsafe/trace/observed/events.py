"""API calls and changes of state, as the ranks see them and as checkers receive them.

The observer of a rank calls a `Listener` in the order in which things happen.  `table.replay`
calls it in the same order from a recorded table, so that a checker is written once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

#: A value that is kept as it is.  A text is cut at `MAX_TEXT` characters.
Plain = bool | int | float | str | None

#: The longest text of a plain value, in characters.
MAX_TEXT = 200


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """What is recorded of a tensor instead of its elements.

    `digest` is a 64-bit hash of the exact content of the rank's local tensor, 0 if it was not
    computed.  `norm` is its Euclidean norm, None if it was not computed or the dtype has none.
    `flags` has the names of the true boolean attributes that programs put on tensors, such as
    "tensor_model_parallel", sorted.
    """

    digest: int
    shape: tuple[int, ...]
    dtype: str
    device: str
    norm: float | None = None
    zero: bool = False
    finite: bool = True
    requires_grad: bool = False
    is_view: bool = False
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Value:
    """An argument, a result or an attribute.

    `type` is the qualified name of its class ("torch.Tensor", "float", "NoneType").  `plain` holds
    a number, a truth value or a text, and dtypes and devices as text.  `identity` numbers the
    mutable objects of a process from 1 in the order in which they were first seen, so that one
    object is recognised in several places; 0 for others.
    """

    type: str
    plain: Plain = None
    tensor: TensorFacts | None = None
    identity: int = 0


@dataclass(slots=True, eq=False)
class Call:
    """One call of an observed API.

    `values` has the arguments as "self", "arg.NAME" (bound to the signature where it is known, else
    "arg.0", "arg.1", ...), and, after the call returned, "result" (or "result.0", "result.1", ...
    for a tuple).  `parent` is the observed call that this one happened in, on the same thread.
    `exception` is the qualified name of the class that the call raised.  `meta` holds at the entry:
    step, micro-batch, phase, rank coordinates, contexts such as autocast, the program's own.
    """

    api: str
    meta: Mapping[str, Plain]
    parent: Call | None = None
    thread: int = 0
    values: dict[str, Value] = field(default_factory=dict)
    exception: str = ""


@dataclass(slots=True, eq=False)
class Change:
    """The state of an attribute of a training object: `before` and `after` what happened.

    `object` is its name within the process ("model.decoder.weight", "optimizer.param_groups.0"),
    `type` the qualified name of its class, and `attribute` the changed part ("data", "grad", "lr").
    `by` is the innermost observed call that made it, None for none.  An object that did not change
    is sampled at the end of a step: `changed` is then False and `before` None.
    """

    object: str
    type: str
    attribute: str
    after: Value
    meta: Mapping[str, Plain]
    before: Value | None = None
    by: Call | None = None
    changed: bool = True


class Listener(Protocol):
    """Receives what a process observes, in order."""

    def entered(self, call: Call) -> None:
        """A call begins: its arguments are known, its result is not."""
        ...

    def left(self, call: Call) -> None:
        """A call returned or raised."""
        ...

    def changed(self, change: Change) -> None:
        """An attribute changed, or was sampled."""
        ...

    def step_ended(self, step: int) -> None:
        """A training step is over; what it recorded is complete."""
        ...
