"""A forged or damaged trace is refused with an error that names the file, in little memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_trainsafe.trace.reader import MAX_LINE, Trace, TraceError
from pytest_trainsafe.trace.tensors.payload import MAX_HEADER
from tests.support.trace.forged_traces import (
    EVENTS,
    FILES,
    MANIFEST,
    PAYLOAD,
    REPLACEMENTS,
    SKETCHED,
    WEIGHT,
    content,
    forge,
    forge_manifest,
    lines,
    record,
    with_changes,
)

pytestmark = pytest.mark.usefixtures("never_hangs")


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    return record(tmp_path / "trace")


def refused(path: Path) -> str:
    """The message of the TraceError with which a trace is refused."""
    with pytest.raises(TraceError) as caught:
        content(path)
    return str(caught.value)


@pytest.mark.parametrize("kind", REPLACEMENTS)
@pytest.mark.parametrize("name", [MANIFEST, EVENTS, PAYLOAD])
def test_an_irregular_file_in_a_trace_is_refused_with_its_kind(
    whole: Path, name: str, kind: str
) -> None:
    (whole / name).unlink()
    REPLACEMENTS[kind](whole / name)
    message = refused(whole)
    assert f"{whole / name}" in message or (name == MANIFEST and "manifest.json" in message)
    assert f"it is {kind}, not a regular file" in message


def test_a_rank_folder_that_is_a_symbolic_link_is_refused(whole: Path) -> None:
    (whole / "rank1").rename(whole.parent / "elsewhere")
    (whole / "rank1").symlink_to(whole.parent / "elsewhere")
    assert "rank1 is a symbolic link, not a folder" in refused(whole)


def test_a_trace_can_be_opened_through_a_symbolic_link(whole: Path) -> None:
    (whole.parent / "link").symlink_to(whole)
    assert content(whole.parent / "link") == content(whole)


CHANGES: dict[str, tuple[str, object]] = {
    "another axis": ("point", {"dp": 2}),
    "another seed": ("seed", 1),
    "another version": ("versions", {"torch": "0"}),
    "a perturbation": ("perturbation", 1.0),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_manifest_is_refused_because_its_hash_differs_from_the_ranks(
    whole: Path, change: str
) -> None:
    manifest = json.loads((whole / MANIFEST).read_text())
    key, value = CHANGES[change]
    (whole / MANIFEST).write_text(json.dumps(with_changes(manifest, **{key: value})))
    assert "manifest.json does not have the hash that rank 0 recorded" in refused(whole)
    crashed = Trace.open(whole, allow_incomplete=True)
    assert not crashed.complete
    assert len(crashed.problems) == 1


def test_a_rank_folder_of_another_run_is_refused(whole: Path, tmp_path: Path) -> None:
    other = record(tmp_path / "other")
    manifest = json.loads((other / MANIFEST).read_text())
    forge_manifest(other, with_changes(manifest, seed=1))
    (whole / "rank1").rename(tmp_path / "aside")
    (other / "rank1").rename(whole / "rank1")
    assert "does not have the hash that rank 1 recorded" in refused(whole)


MANIFESTS: dict[str, tuple[dict[str, object], str]] = {
    "a world of 10**9": ({"point": {"tp": 10**9}, "world_size": 10**9}, "world_size"),
    "a world of 2**63": ({"point": {"tp": 2**63}, "world_size": 2**63}, "world_size"),
    "an axis of 10**9": ({"point": {"tp": 10**9}}, "the size of tp is 1000000000"),
    "axes that overflow": ({"point": {"tp": 2**14, "dp": 2**14, "cp": 2**14}}, "contradicts"),
    "an axis that is no number": ({"point": {"tp": "x"}}, "the size of tp is 'x'"),
    "an axis that is a truth": ({"point": {"tp": True}}, "the size of tp is True"),
    "a negative axis": ({"point": {"tp": -2}}, "the size of tp is -2"),
    "an axis of nothing": ({"point": {"tp": 0}}, "the size of tp is 0"),
    "a dtype that is a function": ({"dtype": "manual_seed"}, "no dtype 'manual_seed'"),
    "no axes": ({"point": []}, "contradicts itself"),
    "axes that are a word": ({"point": "tp"}, "damaged"),
    "a seed of 10**100": ({"seed": 10**100}, "damaged"),
}


@pytest.mark.parametrize("what", MANIFESTS)
def test_a_manifest_with_an_invalid_value_is_refused(whole: Path, what: str) -> None:
    changes, words = MANIFESTS[what]
    manifest = json.loads((whole / MANIFEST).read_text())
    (whole / MANIFEST).write_text(json.dumps(with_changes(manifest, **changes)))
    message = refused(whole)
    assert f"{whole}/manifest.json" in message
    assert words in message


BYTES = {
    "deep": b"[" * 200_000,
    "deep objects": b'{"a":' * 100_000,
    "not UTF-8": b'{"format": "\xff\xfe"}',
    "not a number": b'{"format": NaN}',
    "infinite": b'{"format": 1e999}',
    "empty": b"",
    "a megabyte and more": b" " * (2**20 + 1),
}


@pytest.mark.parametrize("what", BYTES)
def test_a_manifest_of_invalid_bytes_is_refused(whole: Path, what: str) -> None:
    (whole / MANIFEST).write_bytes(BYTES[what])
    assert "manifest.json" in refused(whole)


@pytest.mark.parametrize("what", BYTES)
def test_a_line_of_invalid_bytes_in_the_events_is_refused(whole: Path, what: str) -> None:
    before = (whole / EVENTS).read_bytes()
    (whole / EVENTS).write_bytes(BYTES[what] + b"\n" + before)
    message = refused(whole)
    assert f"{whole / EVENTS} line 1 is damaged" in message
    assert Trace.open(whole, allow_incomplete=True).ranks[0].complete


def changed(events: list[dict[str, Any]], number: int, **changes: object) -> list[dict[str, Any]]:
    return [*events[:number], {**events[number], **changes}, *events[number + 1 :]]


#: The number of an event (4 is the weight's), the changes of its fields, and words of the error.
FORGERIES: dict[str, tuple[int, dict[str, object], str]] = {
    "shape of 2**63": (4, {"shape": [2**63]}, "shape"),
    "negative shape": (4, {"shape": [-8]}, "shape"),
    "shape that overflows": (4, {"shape": [2**40, 2**40]}, "elements"),
    "shape beside nothing": (4, {"shape": [0, 2**40], "key": "1"}, "payload-00000"),
    "another shape": (4, {"shape": [2, 3]}, "is not a torch.float32 tensor of shape [2, 3]"),
    "another dtype": (4, {"dtype": "int32"}, "is not a torch.int32 tensor"),
    "no dtype": (4, {"dtype": "Tensor"}, "unknown dtype 'Tensor'"),
    "unknown axis": (4, {"layout": [{"type": "shard", "dim": 0, "axis": "zz"}]}, "axis 'zz'"),
    "many placements": (4, {"layout": [{"type": "partial", "axis": "tp"}] * 99}, "99 placements"),
    "unknown entry": (4, {"key": "77"}, "has no entry 77"),
    "unknown file": (4, {"file": "payload-00007.safetensors"}, "payload-00007"),
    "file elsewhere": (4, {"file": "../rank0/payload-00000.safetensors"}, "not the name"),
    "no file": (4, {"file": ""}, "must have both a file and a position"),
    "key and sketch": (4, {"sketch": 0}, "both values and a sketch"),
    "derived kind": (4, {"id": {"step": 0, "microbatch": None, "kind": "update",
                                "module": "layer", "name": "weight"}}, "computed and never"),
    "unknown sketch": (5, {"sketch": 7}, "sketch 7 (counted from 0), but the file has 1"),
    "huge sketched shape": (5, {"shape": [2**41]}, "elements"),
    "negative offset": (6, {"layout": [{"type": "slices", "ranges": [[[-1, 1, 1]]],
                                        "shape": [4], "axes": ["tp"]}]}, "ranges"),
    "no step": (6, {"layout": [{"type": "slices", "ranges": [[[0, 2, 0]]],
                                "shape": [4], "axes": ["tp"]}]}, "ranges"),
    "ragged slices": (6, {"layout": [{"type": "slices", "ranges": [[[0, 2, 1]], [[0, 2, 1]]],
                                      "shape": [4], "axes": ["tp"]}]}, "slices for each dimension"),
    "slices out of order": (6, {"layout": [{"type": "slices", "ranges": [[[2, 4, 1], [1, 2, 1]]],
                                            "shape": [4], "axes": ["tp"]}]}, "out of order"),
    "slices beyond the end": (6, {"layout": [{"type": "slices", "ranges": [[[0, 9, 4]]],
                                              "shape": [4], "axes": ["tp"]}]}, "out of order"),
    "many slices": (6, {"layout": [{"type": "slices", "shape": [2**40], "axes": ["tp"],
                                    "ranges": [[[2 * n, 2 * n + 1, 1] for n in range(2**16 + 1)]],
                                    }]}, "more than 65536 slices"),
    "huge rectangle": (6, {"layout": [{"type": "slices", "ranges": [[[0, 2, 1]]],
                                       "shape": [2**40], "axes": ["tp"]}]}, "declared to have"),
    "huge run": (6, {"layout": [{"type": "flat", "offset": 0, "length": 2, "shape": [2**20, 2**20],
                                 "axes": ["tp"]}]}, "declared to have"),
    "huge blocks": (4, {"layout": [{"type": "shard", "dim": 0, "axis": "tp",
                                    "blocks": [2**40]}]}, "declared to have"),
    "no owners": (4, {"layout": [{"type": "owned", "axes": ["dp"], "parts": 0}]}, "parts"),
    "no order": (1, {"cp_order": 7}, "cp_order"),
    "unknown cast": (2, {"dtype": "float99"}, "float99"),
    "unknown event": (2, {"type": "cake"}, "cake"),
    "unknown note": (2, {"type": "note", "key": "cake", "value": ""}, "cake"),
    "step of -7": (7, {"step": -7}, "step"),
}  # fmt: skip


@pytest.mark.parametrize("forgery", FORGERIES)
def test_an_event_with_an_invalid_value_is_refused(whole: Path, forgery: str) -> None:
    number, changes, words = FORGERIES[forgery]
    forge(whole, changed(lines(whole), number, **changes))
    message = refused(whole)
    assert f"{whole}/rank1" in message
    assert words in message


def test_a_tensor_that_is_recorded_twice_is_refused(whole: Path) -> None:
    events = lines(whole)
    forge(whole, [*events, {**events[4], "seq": len(events)}])
    assert f"{WEIGHT} was recorded twice" in refused(whole)


def test_an_error_message_shortens_quoted_text_and_contains_no_escape_characters(
    whole: Path,
) -> None:
    forge(whole, changed(lines(whole), 4, dtype="\x1b[2J" + "x" * 100_000))
    message = refused(whole)
    assert "unknown dtype" in message
    assert len(message) < 2000
    assert "\x1b" not in message


def test_a_line_longer_than_the_limit_is_refused(whole: Path) -> None:
    (whole / EVENTS).write_bytes(b" " * (MAX_LINE + 1))
    assert f"line 1 is longer than {MAX_LINE} bytes" in refused(whole)


def rewritten(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Rewrite a payload's header, padded so that the data after it keep their offset."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    change(header)
    text = json.dumps(header, separators=(",", ":")).encode().ljust(length)
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])


def resized(header: dict[str, Any], start: int, end: int) -> None:
    header["0"]["data_offsets"] = [start, end]


HEADERS: dict[str, Callable[[dict[str, Any]], None]] = {
    "beyond the file": lambda header: resized(header, 0, 10**6),
    "beyond all files": lambda header: resized(header, 0, 2**64),
    "overlapping": lambda header: resized(header, 4, 40),
    "backwards": lambda header: resized(header, 40, 8),
    "negative": lambda header: resized(header, -8, 32),
    "another dtype": lambda header: header["0"].update(dtype="I32"),
    "another shape": lambda header: header["0"].update(shape=[4, 2]),
    "missing": lambda header: header.pop("0"),
    "sketches of another shape": lambda header: header["sketches"].update(shape=[1, 16, 8]),
    "sketches of another dtype": lambda header: header["sketches"].update(dtype="F32"),
}


@pytest.mark.parametrize("change", HEADERS)
def test_a_payload_with_a_wrong_entry_in_its_header_is_refused(whole: Path, change: str) -> None:
    rewritten(whole / PAYLOAD, HEADERS[change])
    assert f"{whole / PAYLOAD} is missing or damaged" in refused(whole)


@pytest.mark.parametrize("length", [0, 7, 2**32, 2**63, 2**64 - 1])
def test_a_payload_with_a_wrong_header_length_is_refused(whole: Path, length: int) -> None:
    data = (whole / PAYLOAD).read_bytes()
    (whole / PAYLOAD).write_bytes(length.to_bytes(8, "little") + data[8:])
    assert f"{whole / PAYLOAD} is missing or damaged" in refused(whole)


@pytest.mark.parametrize("size", [0, 4, 8])
def test_a_payload_of_a_few_bytes_is_refused(whole: Path, size: int) -> None:
    os.truncate(whole / PAYLOAD, size)
    assert f"{whole / PAYLOAD} is missing or damaged" in refused(whole)


def test_sketches_without_a_hash_in_the_end_event_are_refused(whole: Path) -> None:
    data = (whole / EVENTS).read_bytes().splitlines()
    end = json.loads(data[-1])
    end["sketches"] = {}
    (whole / EVENTS).write_bytes(b"\n".join([*data[:-1], json.dumps(end).encode(), b""]))
    forge(whole, lines(whole))
    assert "has no hash of the sketches in this file" in refused(whole)
    assert SKETCHED in Trace.open(whole, allow_incomplete=True).ranks[0].tensors


MEASURE = """
import resource, sys
from pathlib import Path
from pytest_trainsafe.trace.reader import Trace, TraceError

Trace.open(sys.argv[1])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for path in sys.argv[2:]:
    try:
        Trace.open(path, allow_incomplete=True)
    except TraceError:
        pass
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_opening_a_hostile_trace_takes_less_than_100_mib_more_than_a_sound_one(
    whole: Path, tmp_path: Path
) -> None:
    hostile = []

    def another(name: str) -> Path:
        hostile.append(str(record(tmp_path / name)))
        return tmp_path / name

    manifest = json.loads((whole / MANIFEST).read_text())
    large = with_changes(manifest, point={"tp": 10**9}, world_size=10**9)
    (another("world") / MANIFEST).write_text(json.dumps(large))
    for name in FILES:
        path = another(f"sparse-{name.replace('/', '-')}") / name
        os.truncate(path, 2**36)
        path = another(f"zero-{name.replace('/', '-')}") / name
        path.unlink()
        path.symlink_to("/dev/zero")
    path = another("header") / PAYLOAD
    path.write_bytes((MAX_HEADER + 1).to_bytes(8, "little"))
    os.truncate(path, 2**30)
    for number, (event, changes, _) in enumerate(FORGERIES.values()):
        path = another(f"forged{number}")
        forge(path, changed(lines(path), event, **changes))

    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(whole), *hostile],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert int(done.stdout) < 100 * 1024, "KiB more than a sound trace takes"
