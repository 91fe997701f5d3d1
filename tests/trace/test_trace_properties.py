"""Reading a damaged or forged trace gives valid data or a TraceError, wherever the damage is."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_trainsafe.align.logical import logical_tensor
from pytest_trainsafe.align.sketched import logical_sketch
from pytest_trainsafe.trace.reader import Trace, TraceError
from tests.support.trace.forged_traces import (
    FILES,
    MANIFEST,
    content,
    exchanged,
    forge,
    forge_manifest,
    lines,
    record,
)
from tests.support.trace.forged_traces import places as places_in

pytestmark = pytest.mark.usefixtures("never_hangs")


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("original") / "trace")


@pytest.fixture(scope="module")
def copied(original: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A copy to damage; each example restores the file that it damaged."""
    path = tmp_path_factory.mktemp("copy") / "trace"
    shutil.copytree(original, path)
    yield path
    assert content(path) == content(original)


def same_or_refused(path: Path, original: Path) -> None:
    """Assert that a trace is read as `original`, or refused with an error that names it."""
    signal.alarm(120)
    try:
        found = content(path)
    except TraceError as error:
        found = str(error)
    assert found == content(original) or str(path) in str(found)


@given(data=st.data())
def test_a_trace_with_a_flipped_bit_is_read_unchanged_or_refused(
    original: Path, copied: Path, data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from(FILES))
    whole = (original / name).read_bytes()
    place = data.draw(st.integers(0, 8 * len(whole) - 1))
    damaged = bytearray(whole)
    damaged[place // 8] ^= 1 << place % 8
    (copied / name).write_bytes(damaged)
    try:
        same_or_refused(copied, original)
    finally:
        (copied / name).write_bytes(whole)


@given(data=st.data())
def test_a_trace_with_a_lost_or_overwritten_range_is_read_unchanged_or_refused(
    original: Path, copied: Path, data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from(FILES))
    whole = (original / name).read_bytes()
    start = data.draw(st.integers(0, len(whole)))
    end = data.draw(st.integers(start, len(whole)))
    instead = data.draw(st.binary(max_size=40))
    (copied / name).write_bytes(whole[:start] + instead + whole[end:])
    try:
        same_or_refused(copied, original)
    finally:
        (copied / name).write_bytes(whole)


#: Values that must cause no other error than a TraceError in any field of an event or manifest.
_scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.sampled_from([-1, 0, 1, 2**31, 2**40, 2**48, 2**63 - 1, 2**63, 2**64]),
    st.floats(allow_nan=False),
    st.text(max_size=20),
    st.sampled_from(["tp", "pp", "zz", "sum", "float64", "F64", "payload-00000.safetensors"]),
)
_layouts = st.lists(
    st.one_of(
        st.fixed_dictionaries(
            {
                "type": st.sampled_from(["shard", "zigzag", "striped", "partial", "scaled"]),
                "axis": st.sampled_from(["tp", "cp", "pp", "zz"]),
                "dim": st.integers(-3, 3),
            }
        ),
        st.fixed_dictionaries(
            {
                "type": st.sampled_from(["slices", "flat", "owned"]),
                "axes": st.lists(st.sampled_from(["tp", "dp", "zz"]), max_size=2),
                "offsets": st.lists(st.integers(0, 2**33), max_size=2),
                "lengths": st.lists(st.integers(0, 2**33), max_size=2),
                "shape": st.lists(st.sampled_from([0, 1, 2, 4, 8, 2**33]), max_size=2),
                "offset": st.integers(-1, 2**33),
                "length": st.integers(-1, 2**33),
                "parts": st.integers(-1, 3),
            }
        ),
    ),
    max_size=3,
)
_values = st.one_of(
    _scalars,
    _layouts,
    st.recursive(
        _scalars,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=3),
        max_leaves=8,
    ),
)


def readable_or_refused(path: Path) -> None:
    """Open a forged trace and merge all its tensors and sketches, or assert that it is refused."""
    signal.alarm(120)
    try:
        content(path)
    except TraceError as error:
        assert str(path) in str(error)  # noqa: PT017
        return
    trace = Trace.open(path)
    for id in trace.ids():
        logical_sketch(trace, id)
        if all(event.key for _, event in trace.holders(id)):
            logical_tensor(trace, id)


@given(data=st.data())
def test_a_trace_with_forged_events_is_readable_or_refused(
    original: Path, copied: Path, data: st.DataObject
) -> None:
    events: Any = lines(original)
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.sampled_from(places_in(events)[1:]))
        layouts = place[-1] == "layout"
        events = exchanged(events, place, data.draw(_layouts if layouts else _values))
    whole = (original / "rank1/events.jsonl").read_bytes()
    try:
        forge(copied, events)
        readable_or_refused(copied)
    finally:
        (copied / "rank1/events.jsonl").write_bytes(whole)


@given(data=st.data())
def test_a_trace_with_a_forged_manifest_is_readable_or_refused(
    original: Path, copied: Path, data: st.DataObject
) -> None:
    whole = {name: (original / name).read_bytes() for name in FILES}
    manifest: Any = msgspec.json.decode(whole[MANIFEST])
    for _ in range(data.draw(st.integers(1, 2))):
        place = data.draw(st.sampled_from(places_in(manifest)))
        manifest = exchanged(manifest, place, data.draw(_values))
        if not isinstance(manifest, dict):
            break
    try:
        forge_manifest(copied, manifest)
        readable_or_refused(copied)
    finally:
        for name, content_before in whole.items():
            (copied / name).write_bytes(content_before)
