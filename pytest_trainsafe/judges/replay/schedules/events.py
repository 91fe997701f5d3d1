"""The events of Runs with a schedule: asynchronous calls, and early uses of their buffers."""

from __future__ import annotations

from typing import Literal

import msgspec

from pytest_trainsafe.core.layout import Count
from pytest_trainsafe.core.tensor_id import Step
from pytest_trainsafe.trace.events import register
from pytest_trainsafe.trace.facts import Text


@register
class EarlyUse(msgspec.Struct, frozen=True, tag="early_use", omit_defaults=True):
    """An operator used a buffer of an asynchronous call before the rank had waited for the call.

    `access` says what it did to which buffer, `call` and `issued` are the call and its line, and
    `operator` and `at` the operator and its line.  `step` is the number of finished steps.
    With `recorder`, this package's recorder read the buffer, on behalf of the line `at`.
    """

    access: Literal["read output", "write output", "write input"]
    call: Text
    issued: Text
    operator: Text
    at: Text
    step: Step
    recorder: bool = False


@register
class AsynchronousCalls(msgspec.Struct, frozen=True, tag="asynchronous_calls"):
    """How many asynchronous collectives, sends and receives a rank issued."""

    count: Count
