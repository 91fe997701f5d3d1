"""Whatever the cache's folder contains, a reference is found in it or recorded again."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.core.untrusted import BadFileError
from pytest_trainsafe.launch.resources.locks import is_locked, try_lock
from pytest_trainsafe.record.reads.notes import Notes
from pytest_trainsafe.runs.cached.cache import Entry, ReferenceCache
from pytest_trainsafe.runs.cached.fingerprint import Key
from tests.support.runs.cache_writer import record

KEY = Key("0123", {"seed": 0})
LOSS = TensorId(0, None, "loss", "", "loss")

pytestmark = pytest.mark.usefixtures("never_hangs")


def get(folder: Path, value: float) -> Entry:
    """The entry that a pytest run gets that would record `value`; the run has ended."""

    def make(trace: Path) -> Notes:
        record(trace, value)
        return Notes()

    cache = ReferenceCache(folder, 2**40)
    own = Path(f"{folder}-own")
    shutil.rmtree(own, ignore_errors=True)
    entry = cache.get(KEY, make, environ={}, current=lambda: KEY, own=own)
    cache.close()
    return entry


def value(entry: Entry) -> float:
    return float(entry.trace.load(0, entry.trace.ranks[0].tensors[LOSS]))


KINDS: dict[str, Callable[[Path], None]] = {
    "pipe": os.mkfifo,
    "folder": Path.mkdir,
    "link to zeros": lambda path: path.symlink_to("/dev/zero"),
    "link to nothing": lambda path: path.symlink_to("nowhere"),
    "link to itself": lambda path: path.symlink_to(path.name),
}

FILES = {
    "seal": f"{KEY.digest}/entry.json",
    "pin": f"{KEY.digest}/pin",
    "manifest": f"{KEY.digest}/trace/manifest.json",
    "events": f"{KEY.digest}/trace/rank0/events.jsonl",
    "payload": f"{KEY.digest}/trace/rank0/payload-00000.safetensors",
    "rank": f"{KEY.digest}/trace/rank0",
    "trace": f"{KEY.digest}/trace",
    "entry": KEY.digest,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("what", FILES)
def test_an_entry_with_a_pipe_folder_or_link_as_a_file_is_recorded_again(
    tmp_path: Path, what: str, kind: str
) -> None:
    folder = tmp_path / "cache"
    get(folder, 1.0)
    path = folder / FILES[what]
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    KINDS[kind](path)

    again = get(folder, 2.0)

    assert (again.reused, value(again)) == (False, 2.0)
    assert value(get(folder, 3.0)) == 2.0


@pytest.mark.parametrize("kind", KINDS)
def test_a_pipe_folder_or_link_in_place_of_a_lock_is_replaced(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "cache"
    get(folder, 1.0)
    (folder / f"{KEY.digest}.lock").unlink()
    KINDS[kind](folder / f"{KEY.digest}.lock")

    again = get(folder, 2.0)

    assert (again.reused, value(again)) == (True, 1.0)


@pytest.mark.parametrize("kind", ["pipe", "link to nothing", "link to itself", "file"])
def test_without_a_usable_cache_folder_a_reference_is_recorded_but_not_cached(
    tmp_path: Path, kind: str
) -> None:
    {**KINDS, "file": Path.touch}[kind](tmp_path / "cache")
    entry = get(tmp_path / "cache", 1.0)
    assert (entry.reused, value(entry)) == (False, 1.0)
    assert entry.trace.path == tmp_path / "cache-own"


def test_if_the_lock_cannot_be_taken_a_reference_is_recorded_but_not_cached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, _stop: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("pytest_trainsafe.runs.cached.cache.wait_lock", refuse)
    entry = get(tmp_path / "cache", 1.0)
    assert (value(entry), entry.trace.path) == (1.0, tmp_path / "cache-own")


SEALS: dict[str, Callable[[dict[str, object]], object]] = {
    "a name with a null": lambda seal: {**seal, "inputs": {"files": {"\0": ""}}},
    "a name that is no UTF-8": lambda seal: {**seal, "inputs": {"files": {"\udc80": ""}}},
    "a file whose hash is a number": lambda seal: {**seal, "inputs": {"files": {"/x": 1}}},
    "variables in a list": lambda seal: {**seal, "inputs": {"variables": ["X"]}},
    "an earlier entry": lambda seal: {**seal, "loaded": {}} | {"inputs": None},
    "a list": lambda seal: [seal],
    "another key": lambda seal: {**seal, "key": {"seed": 1}},
    "a file too many": lambda seal: {**seal, "files": {**seal["files"], "x": [0, ""]}},  # type: ignore[dict-item]
}


@pytest.mark.parametrize("what", SEALS)
def test_an_entry_whose_seal_does_not_match_it_is_recorded_again(tmp_path: Path, what: str) -> None:
    get(tmp_path, 1.0)
    seal = tmp_path / KEY.digest / "entry.json"
    changed = SEALS[what](json.loads(seal.read_text()))
    seal.write_text(json.dumps(changed))
    again = get(tmp_path, 2.0)
    assert again.trace.complete
    # The seal says that the file of this name is missing, and no such file can exist.
    assert again.reused == (what == "a name with a null")


@pytest.mark.parametrize(
    "data",
    [b"[" * 200_000, b'{"key":' + b'{"a":' * 100_000, b"\xff", b"", b'{"key": NaN}'],
    ids=["deep", "deep key", "no UTF-8", "empty", "no number"],
)
def test_an_entry_with_a_malformed_seal_is_recorded_again(tmp_path: Path, data: bytes) -> None:
    get(tmp_path, 1.0)
    (tmp_path / KEY.digest / "entry.json").write_bytes(data)
    assert value(get(tmp_path, 2.0)) == 2.0


def test_a_pipe_among_the_files_of_a_program_does_not_block(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    get(folder, 1.0)
    os.mkfifo(tmp_path / "pipe")
    seal = folder / KEY.digest / "entry.json"
    content = json.loads(seal.read_text())
    seal.write_text(
        json.dumps({**content, "inputs": {"files": {str(tmp_path / "pipe"): "0" * 32}}})
    )
    assert value(get(folder, 2.0)) == 2.0


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with one entry, to be damaged and recorded again."""
    folder = tmp_path_factory.mktemp("filled") / "cache"
    get(folder, 1.0)
    return folder


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_entry_is_recorded_again_or_has_its_old_value(
    filled: Path, data: st.DataObject
) -> None:
    signal.alarm(120)
    before = value(get(filled, 1.0))
    entry = filled / KEY.digest
    files = sorted(path for path in entry.rglob("*") if path.is_file() and path.name != "pin")
    path = data.draw(st.sampled_from(files))
    whole = path.read_bytes()
    start = data.draw(st.integers(0, len(whole)))
    end = data.draw(st.integers(start, min(len(whole), start + 8)))
    path.write_bytes(whole[:start] + data.draw(st.binary(max_size=8)) + whole[end:])

    again = get(filled, before + 1)

    assert value(again) == (before if again.reused else before + 1)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "link to nothing"])
def test_a_lock_that_is_no_regular_file_is_refused_without_blocking(
    tmp_path: Path, kind: str
) -> None:
    KINDS[kind](tmp_path / "lock")
    with pytest.raises(BadFileError, match="not a regular file"):
        try_lock(tmp_path / "lock")
    assert not is_locked(tmp_path / "lock")


def test_a_lock_that_is_a_symbolic_link_creates_no_file_at_its_target(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BadFileError, match="a symbolic link"):
        try_lock(tmp_path / "lock")
    assert not (tmp_path / "elsewhere").exists()
