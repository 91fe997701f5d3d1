"""The event types of a trace, and how to add one.

Called by the reader, which decodes every line of a rank as one of these types.

A judge that needs another event defines it as a `msgspec.Struct` with a tag of its own, in a file
of its own, and registers it before a trace is written or read.  Those of this package's judges are
listed in `wings`:

    @register
    class GradientScale(msgspec.Struct, frozen=True, tag="gradient_scale"):
        step: int
        scale: float

    recorder.writer.add(GradientScale(0, 65536.0))      # in a rank
    trace.ranks[0].events_of(GradientScale)             # in the judge

Fields come from an untrusted file: give numbers bounds and texts a greatest length.  If types
cannot express what is valid, define `fault(self) -> str`, which returns what is wrong, or "".
"""

from __future__ import annotations

import functools
import operator
from typing import Any, TypeVar

import msgspec

from pytest_trainsafe import wings
from pytest_trainsafe.core.prepared import decoder_of
from pytest_trainsafe.trace.facts import (
    Altered,
    Annotations,
    Applied,
    Caller,
    Cast,
    Changed,
    CheckpointEvent,
    ClipLimit,
    CollectiveEvent,
    Counted,
    EpochRead,
    KeptWeights,
    Made,
    Marked,
    Overwritten,
    Reduction,
    Settings,
    SetUp,
    Site,
    TrainingState,
    Unheld,
    Zeroed,
)
from pytest_trainsafe.trace.operators import OperatorCount, OperatorEvent, OutsideRead
from pytest_trainsafe.trace.rng.events import DrawEvent, LedgerGap, UnseenDraws, WorkerDraw
from pytest_trainsafe.trace.schema import (
    End,
    InputEvent,
    ModuleEvent,
    NoteEvent,
    StepEvent,
    TensorEvent,
)

_Type = TypeVar("_Type", bound=type[msgspec.Struct])

_TYPES: dict[str, type[msgspec.Struct]] = {}


def register(event: _Type) -> _Type:
    """Makes a `msgspec.Struct` an event type of traces; usable as a decorator.

    Raises ValueError for a type without a tag of its own, or with the tag of another type.
    """
    tag = event.__struct_config__.tag
    if not isinstance(tag, str) or event.__struct_config__.tag_field != "type":
        raise ValueError(
            f"{event.__qualname__} has no tag; define it as "
            f'class {event.__name__}(msgspec.Struct, frozen=True, tag="...")'
        )
    known = _TYPES.setdefault(tag, event)
    if known is not event and (known.__module__, known.__qualname__) != (
        event.__module__,
        event.__qualname__,
    ):
        raise ValueError(
            f"the event types {known.__module__}.{known.__qualname__} and "
            f"{event.__module__}.{event.__qualname__} both have the tag {tag!r}; choose another"
        )
    _TYPES[tag] = event
    return event


for _built_in in (
    *(TensorEvent, ModuleEvent, InputEvent, StepEvent, NoteEvent, End),
    *(
        Altered,
        Annotations,
        Applied,
        Caller,
        Cast,
        Changed,
        CollectiveEvent,
        Counted,
        Made,
        Marked,
        Overwritten,
        Reduction,
        Settings,
        SetUp,
        Site,
        Unheld,
        Zeroed,
    ),
    *(DrawEvent, UnseenDraws, WorkerDraw, LedgerGap),
    *(OperatorCount, OperatorEvent, OutsideRead),
    *(CheckpointEvent, ClipLimit, EpochRead, KeptWeights, TrainingState),
):
    register(_built_in)


def decoder() -> msgspec.json.Decoder[Any]:
    """A decoder that turns one line of a rank's events into an instance of a registered type."""
    wings.objects(wings.EVENTS)
    return decoder_of(functools.reduce(operator.or_, _TYPES.values()))


def fault_of(event: msgspec.Struct) -> str:
    """What is wrong with an event, checked without others; "" if it is valid."""
    check = getattr(event, "fault", None)
    return str(check()) if check is not None else ""
