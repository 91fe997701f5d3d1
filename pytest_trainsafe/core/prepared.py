"""Prepares struct types that several threads decode.

msgspec (0.22) prepares a type when it is first decoded.  If two threads do so at once, the process
may crash, above all with a type that contains itself.
"""

from __future__ import annotations

import threading
from typing import Any, TypeVar

import msgspec

_Type = TypeVar("_Type", bound=type[msgspec.Struct])

_one_at_a_time = threading.RLock()


def prepared(kind: _Type) -> _Type:
    """Prepares a type now; usable as a decorator, but not of a type that contains itself."""
    decoder_of(kind)
    return kind


def decoder_of(kind: Any) -> msgspec.json.Decoder[Any]:
    """A decoder of a type that may not be prepared yet."""
    with _one_at_a_time:
        return msgspec.json.Decoder(kind)
