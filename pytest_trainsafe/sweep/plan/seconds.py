"""How long each test took in earlier runs: a bounded file in pytest's cache.

The plan reads it, and the end of a run updates it.  The file may come from another machine, for
example as a cache of a CI service, so it is checked when it is read.
"""

from __future__ import annotations

import contextlib
import math
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import msgspec

from pytest_trainsafe.core.axes import MAX_SECONDS
from pytest_trainsafe.core.untrusted import MALFORMED, read_file

FORMAT = "pytest-trainsafe seconds 1"
NAME = "seconds.json"

#: The maximum number of tests in the file, length of a node id, and size of the file in bytes.
MAX_TESTS, MAX_ID, MAX_BYTES = 20_000, 1_000, 2**25


class _File(msgspec.Struct, forbid_unknown_fields=True):
    """The content of the file; the tests that ran last come last."""

    format: str
    tests: dict[str, float]


def read_seconds(folder: Path) -> dict[str, float]:
    """Maps node ids to seconds; empty if there is no file, or if it is damaged."""
    try:
        data = read_file(folder / NAME, below=folder, max_bytes=MAX_BYTES)
        found = msgspec.json.decode(data, type=_File)
    except (OSError, *MALFORMED):
        return {}
    if found.format != FORMAT or len(found.tests) > MAX_TESTS:
        return {}
    return {nodeid: each for nodeid, each in found.tests.items() if _is_sound(nodeid, each)}


def update_seconds(folder: Path, measured: Mapping[str, float]) -> None:
    """Adds measured seconds to the file.  If it is full, tests that ran longest ago are dropped.

    The file is replaced atomically.  Nothing happens if the folder cannot be written, because the
    seconds are only a hint for later runs.
    """
    sound = {nodeid: round(each, 3) for nodeid, each in measured.items() if _is_sound(nodeid, each)}
    if not sound:
        return
    before = {nodeid: s for nodeid, s in read_seconds(folder).items() if nodeid not in sound}
    kept = dict(list({**before, **sound}.items())[-MAX_TESTS:])
    data = msgspec.json.format(msgspec.json.encode(_File(FORMAT, kept)), indent=0)
    with contextlib.suppress(OSError):
        descriptor, temporary = tempfile.mkstemp(prefix=f"{NAME}.", dir=folder)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
            os.replace(temporary, folder / NAME)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise


def _is_sound(nodeid: str, seconds: float) -> bool:
    return len(nodeid) <= MAX_ID and math.isfinite(seconds) and 0 <= seconds <= MAX_SECONDS
