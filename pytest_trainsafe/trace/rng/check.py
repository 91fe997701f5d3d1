"""Checks the events of the RNG ledger when a trace is opened.  Called by the reader for each."""

from __future__ import annotations

import re

from pytest_trainsafe.trace.rng.events import DrawEvent, LedgerGap, RngEvent, WorkerDraw

#: The longest text of an event, in characters.
_LONGEST = 4096

_STATE = re.compile(r"[0-9a-f]{16}(\.[0-9]{1,20}(\.[0-9a-f]{8})?)?", re.ASCII)
_LINE = re.compile(r".+:[0-9]{1,9}", re.DOTALL | re.ASCII)


def fault_of_rng(event: RngEvent) -> str | None:
    """What is wrong with an event of the ledger that was read back; None for a sound one."""
    if isinstance(event, LedgerGap):
        texts, lines = [event.what, event.why], []
    elif isinstance(event, DrawEvent):
        texts = [event.generator, event.operator, event.module or "", event.stream, event.thread]
        texts += [event.at, event.user, event.seed, event.shared]
        lines = [event.at, event.user]
    else:
        texts, lines = [event.generator], [event.at] if isinstance(event, WorkerDraw) else []
    if any(len(text) > _LONGEST for text in texts):
        return f"an event of the RNG ledger has a text of more than {_LONGEST} characters"
    if any(line and not _LINE.fullmatch(line) for line in lines):
        return "an event of the RNG ledger names no line of a file"
    if isinstance(event, LedgerGap):
        return None
    for state in (event.before, event.after):
        if not _STATE.fullmatch(state):
            return f"an event of the RNG ledger has a malformed state: {state[:80]!r}"
    if isinstance(event, DrawEvent):
        if event.seed and not (event.seed.isascii() and event.seed.isdecimal()):
            return f"an event of the RNG ledger has a malformed seed: {event.seed[:80]!r}"
        if event.count < 1:
            return "an event of the RNG ledger counts no operators"
    return None
