"""API calls and changes of state, as a rank observes them and as a checker receives them.

The observer of a rank calls a `Listener` in the order in which things happen.  `table.replay`
calls it in the same order from a recorded table, so the same checker serves both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

#: The types of a value that is kept itself.  A text is cut at `MAX_TEXT` characters.
Plain = bool | int | float | str | None

#: The longest text of a plain value, in characters.
MAX_TEXT = 200

#: The meta variable of an active context manager is True, and has this and its name as a name.
ACTIVE = "active."


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """The facts that are recorded of a tensor instead of its elements.

    `digest` is a 64-bit hash of the exact content of the rank's local tensor, 0 if it was not
    computed.  `norm` is its Euclidean norm, None if it was not computed or the dtype has none.
    `zero` and `finite` say whether all elements are zero or finite.  `flags` has the sorted names
    of the attributes of the tensor that are True, such as "tensor_model_parallel", and "expert" for
    a parameter that is marked `allreduce = False`.
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

    `type` is the qualified name of its class ("torch.Tensor", "float", "NoneType").  `plain` is the
    value itself if it is a number, a bool or a text; dtypes and devices are kept as text.
    `identity` numbers the objects of a process from 1, in the order in which they were first seen,
    so that an object is recognised in several places.  It is 0 for values that have no identity.
    """

    type: str
    plain: Plain = None
    tensor: TensorFacts | None = None
    identity: int = 0


def holder(place: str) -> str:
    """The argument or result that a value of a call is in: "result" for "result.0.loss".

    It is "self", "arg.NAME" or "result".
    """
    first, *rest = place.split(".")
    return f"arg.{rest[0]}" if first == "arg" and rest else first


@dataclass(slots=True, eq=False)
class Call:
    """One call of an observed API.

    `values` has the arguments as "self", "arg.NAME" (bound to the signature where it is known, else
    "arg.0", "arg.1", ...), and, after the call returned, "result" (or "result.0", "result.1", ...
    for a tuple).  `parent` is the observed call in which this one happened, on the same thread.
    `exception` is the qualified name of the class that the call raised, "" if it raised nothing.
    `meta` has the meta variables at the entry: step, micro-batch, phase, rank coordinates, contexts
    such as autocast, and those that the program sets.
    """

    api: str
    meta: Mapping[str, Plain]
    parent: Call | None = None
    thread: int = 0
    values: dict[str, Value] = field(default_factory=dict)
    exception: str = ""


@dataclass(slots=True, eq=False)
class Change:
    """A change of an attribute of a training object from `before` to `after`, or a sample of it.

    `object` is its name within the process ("model.decoder.weight", "optimizer.param_groups.0"),
    `type` the qualified name of its class, and `attribute` the changed part ("data", "grad", "lr").
    `before` is None for state that is new.  `by` is the innermost observed call around the change,
    None if there is none.  At the end of a step, all attributes are sampled: then `changed` is
    False, `after` is the value, and `before` and `by` are None.
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
    """Receives the calls and changes that a process observes, in their order."""

    def entered(self, call: Call) -> None:
        """A call begins: its arguments are known, its result is not."""
        ...

    def left(self, call: Call) -> None:
        """A call returned or raised."""
        ...

    def changed(self, change: Change) -> None:
        """An attribute changed, or was sampled at the end of a step."""
        ...

    def step_ended(self, step: int) -> None:
        """A training step is over, after all its calls and changes."""
        ...
