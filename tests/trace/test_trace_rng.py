"""Events of the RNG ledger are read back unchanged, and malformed events are refused."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from pytest_trainsafe.trace.reader import Trace, TraceError
from pytest_trainsafe.trace.rng.events import (
    DrawEvent,
    LedgerGap,
    RngEvent,
    UnseenDraws,
    WorkerDraw,
)
from pytest_trainsafe.trace.rng.ledger import ledger
from pytest_trainsafe.trace.run_spec import RunSpec
from pytest_trainsafe.trace.writer import RankWriter, manifest_of, write_manifest

ONE, OTHER = "0123456789abcdef.3", "fedcba9876543210.17.89abcdef"

DRAW = DrawEvent(
    *("torch cpu", "forward", ONE, OTHER, "bernoulli_.float"),
    microbatch=1,
    module="",
    at="/a/model.py:3",
    shape=(2, 0),
    seed="18446744073709551615",
    thread="loader",
    shared="MainThread",
)
SOUND: list[RngEvent] = [
    DRAW,
    DrawEvent("numpy", "data", "0123456789abcdef", ONE),
    UnseenDraws("torch cpu", "evaluation", ONE, OTHER, 2, 5),
    WorkerDraw(0, 1, 2, "python random", ONE, OTHER, "train.py:4", False),
    LedgerGap("what", "why"),
]


def written(path: Path, events: list[RngEvent]) -> Path:
    write_manifest(
        path,
        manifest_of(RunSpec(program="p", dtype="float32"), "cpu"),
    )
    writer = RankWriter(path, 0)
    for event in events:
        writer.add(event)
    writer.close()
    return path


def test_rng_events_are_read_back_unchanged(tmp_path: Path):
    trace = Trace.open(written(tmp_path, SOUND))

    assert ledger(trace.ranks[0]) == SOUND


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"before": "0123"}, "malformed state: '0123'"),
        ({"after": "0123456789abcdef.3.4"}, "malformed state"),
        ({"after": "0123456789ABCDEF"}, "malformed state"),
        ({"at": "model.py"}, "malformed file and line"),
        ({"user": "\u0663:\u0663"}, "malformed file and line"),
        ({"seed": "-1"}, "malformed seed: '-1'"),
        ({"count": 0}, "counts no operators"),
        ({"count": -1}, "is damaged"),
        ({"shape": (-1,)}, "is damaged"),
        ({"phase": "sleeping"}, "is damaged"),
        ({"module": "m" * 5000}, "more than 4096 characters"),
        ({"shared": "t" * 5000}, "more than 4096 characters"),
        ({"generator": None}, "is damaged"),
    ],
)
def test_a_malformed_draw_event_is_refused(tmp_path: Path, changes, message):
    path = written(tmp_path, [msgspec.structs.replace(DRAW, **changes)])

    with pytest.raises(TraceError, match=message):
        Trace.open(path)
