"""References are recorded once, and again if damaged or outdated; the cache is bounded in size."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.launch.resources.locks import Stopped, try_lock
from pytest_trainsafe.record.reads.notes import Notes
from pytest_trainsafe.runs.cached.cache import Entry, ReferenceCache
from pytest_trainsafe.runs.cached.fingerprint import Key
from pytest_trainsafe.trace.schema import SCHEMA_VERSION
from tests.support.runs import cache_writer
from tests.support.runs.cache_writer import record

KEY = Key("0123", {"seed": 0})
OTHER = Key("4567", {"seed": 1})
LOSS = TensorId(0, None, "loss", "", "loss")
LARGE = 2**40


class Maker:
    """Records a tiny trace and counts how often."""

    def __init__(self, notes: Notes | None = None) -> None:
        self.count = 0
        self.notes = notes or Notes()

    def __call__(self, folder: Path) -> Notes:
        self.count += 1
        record(folder, float(self.count))
        return self.notes


@pytest.fixture
def maker() -> Maker:
    return Maker()


def get(cache: ReferenceCache, maker: Callable[[Path], Notes], key: Key = KEY) -> Entry:
    return cache.get(key, maker, environ={}, current=lambda: key, own=own(cache))


def fill(folder: Path, maker: Callable[[Path], Notes]) -> Entry:
    """The entry that a pytest run gets; the run has ended."""
    cache = ReferenceCache(folder, LARGE)
    entry = get(cache, maker)
    cache.close()
    return entry


def own(cache: ReferenceCache) -> Path:
    """The folder for references that are not cached."""
    return Path(f"{cache.directory}-own")


def value(entry: Entry) -> float:
    trace = entry.trace
    return float(trace.load(0, trace.ranks[0].tensors[LOSS]))


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_second_cache_reuses_the_reference_that_the_first_recorded(
    tmp_path: Path, maker: Maker
) -> None:
    first = get(ReferenceCache(tmp_path, LARGE), maker)
    second = get(ReferenceCache(tmp_path, LARGE), maker)

    assert (first.reused, second.reused, maker.count) == (False, True, 1)
    assert value(first) == value(second) == 1.0
    assert get(ReferenceCache(tmp_path, LARGE), maker, OTHER).reused is False


def damage_truncated(entry: Path) -> None:
    payload = next(entry.glob("trace/rank0/*.safetensors"))
    payload.write_bytes(payload.read_bytes()[:-1])


def damage_flipped(entry: Path) -> None:
    payload = next(entry.glob("trace/rank0/*.safetensors"))
    data = bytearray(payload.read_bytes())
    data[-1] ^= 1
    payload.write_bytes(data)


def damage_schema(entry: Path) -> None:
    manifest = entry / "trace/manifest.json"
    own = f'"schema": {SCHEMA_VERSION}'
    manifest.write_text(manifest.read_text().replace(own, '"schema": 999'))


def damage_no_manifest(entry: Path) -> None:
    (entry / "trace/manifest.json").unlink()


def damage_no_seal(entry: Path) -> None:
    (entry / "entry.json").unlink()


def damage_seal(entry: Path) -> None:
    (entry / "entry.json").write_text('{"format": "pytest-trainsafe reference 0"}')


def damage_other_key(entry: Path) -> None:
    seal = entry / "entry.json"
    seal.write_text(seal.read_text().replace('"seed":0', '"seed":7'))


def damage_extra_file(entry: Path) -> None:
    (entry / "trace/rank1").mkdir()
    (entry / "trace/rank1/events.jsonl").write_text("")


def damage_no_trace(entry: Path) -> None:
    (entry / "trace").rename(entry / "elsewhere")


@pytest.mark.parametrize(
    "damage",
    [
        *(damage_truncated, damage_flipped, damage_schema, damage_no_manifest, damage_no_seal),
        *(damage_seal, damage_other_key, damage_extra_file, damage_no_trace),
    ],
)
def test_a_damaged_entry_is_recorded_again(
    tmp_path: Path, maker: Maker, damage: Callable[[Path], None]
) -> None:
    fill(tmp_path, maker)
    damage(tmp_path / KEY.digest)

    again = get(ReferenceCache(tmp_path, LARGE), maker)

    assert (again.reused, value(again)) == (False, 2.0)
    assert get(ReferenceCache(tmp_path, LARGE), maker).reused
    assert names(tmp_path) == {KEY.digest, f"{KEY.digest}.lock"}


def test_a_damaged_entry_that_another_session_reads_is_not_replaced(
    tmp_path: Path, maker: Maker
) -> None:
    reader = ReferenceCache(tmp_path, LARGE)
    read = get(reader, maker)
    damage_no_seal(tmp_path / KEY.digest)

    cache = ReferenceCache(tmp_path, LARGE)
    again = get(cache, maker)

    assert (again.reused, value(again), value(read)) == (False, 2.0, 1.0)
    assert again.trace.path == own(cache)
    reader.close()
    assert (tmp_path / KEY.digest / "trace").exists()
    assert value(get(ReferenceCache(tmp_path, LARGE), maker)) == 3.0
    assert get(ReferenceCache(tmp_path, LARGE), maker).reused


def test_an_entry_without_a_pin_counts_towards_the_size_and_is_removed_first(
    tmp_path: Path, maker: Maker
) -> None:
    fill(tmp_path, maker)
    (tmp_path / KEY.digest / "pin").unlink()
    cache = ReferenceCache(tmp_path, LARGE)
    get(cache, maker, OTHER)
    cache.close()
    size = sum(path.stat().st_size for path in (tmp_path / OTHER.digest).rglob("*"))

    ReferenceCache(tmp_path, int(1.5 * size))._shrink()

    assert names(tmp_path) == {OTHER.digest, f"{OTHER.digest}.lock"}


def test_a_file_in_place_of_an_entry_is_replaced(tmp_path: Path, maker: Maker) -> None:
    (tmp_path / KEY.digest).write_text("no folder")
    assert value(get(ReferenceCache(tmp_path, LARGE), maker)) == 1.0


def test_a_changed_module_with_a_computed_name_makes_its_entry_be_recorded_again(
    tmp_path: Path,
) -> None:
    plugin = tmp_path / "plugin.py"
    plugin.write_text("x = 1\n")
    maker = Maker(Notes(loaded=(str(plugin),)))
    folder = tmp_path / "cache"

    fill(folder, maker)
    assert fill(folder, maker).reused
    plugin.write_text("x = 2\n")
    assert not fill(folder, maker).reused
    plugin.unlink()
    assert not fill(folder, maker).reused


def test_a_reference_whose_sources_changed_during_its_run_is_not_cached(
    tmp_path: Path, maker: Maker
) -> None:
    cache = ReferenceCache(tmp_path, LARGE)
    mine = cache.get(KEY, maker, environ={}, current=lambda: OTHER, own=own(cache))

    assert value(mine) == 1.0
    assert mine.trace.path == own(cache)
    assert names(tmp_path) == set()
    assert get(ReferenceCache(tmp_path, LARGE), maker).reused is False


def test_a_failed_run_leaves_nothing_in_the_cache(tmp_path: Path, maker: Maker) -> None:
    def fail(folder: Path) -> Notes:
        record(folder, 0.0)
        raise RuntimeError("rank 0 failed")

    cache = ReferenceCache(tmp_path, LARGE)
    with pytest.raises(RuntimeError, match="rank 0 failed"):
        get(cache, fail)

    assert names(tmp_path) == set()
    assert get(cache, maker).reused is False


def test_unfinished_entries_of_killed_runs_are_removed(tmp_path: Path, maker: Maker) -> None:
    for digest in (KEY.digest, "89ab"):
        record(tmp_path / f"making-{digest}-x1y2" / "trace", 0.0)

    get(ReferenceCache(tmp_path, LARGE), maker)

    assert names(tmp_path) == {KEY.digest, f"{KEY.digest}.lock"}


def test_a_process_waits_for_a_reference_that_another_records_and_reuses_it(
    tmp_path: Path,
) -> None:
    command = [sys.executable, cache_writer.__file__, str(tmp_path)]
    with subprocess.Popen(
        command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        assert other.stdout.readline() == "ready\n"
        printed = []

        def make(folder: Path) -> Notes:
            assert other.stdin is not None
            assert other.stdout is not None
            other.stdin.write("go\n")
            other.stdin.flush()
            printed.append(other.stdout.readline())
            record(folder, 1.0)
            return Notes()

        mine = get(ReferenceCache(tmp_path, LARGE), make)
        printed.append(other.stdout.readline())

    assert (mine.reused, printed) == (False, ["waiting\n", "reused\n"])
    assert names(tmp_path) == {KEY.digest, f"{KEY.digest}.lock"}


def test_waiting_for_the_run_of_another_process_can_be_stopped(
    tmp_path: Path, maker: Maker
) -> None:
    stop = threading.Event()
    stop.set()
    lock = try_lock(tmp_path / f"{KEY.digest}.lock")
    assert lock is not None
    cache = ReferenceCache(tmp_path, LARGE)
    with lock, pytest.raises(Stopped):
        cache.get(KEY, maker, environ={}, current=lambda: KEY, own=own(cache), stop=stop)
    assert maker.count == 0


def test_the_least_recently_used_entries_are_removed_first_and_none_in_use(
    tmp_path: Path, maker: Maker
) -> None:
    keys = [Key(f"{number:04d}", {}) for number in range(4)]
    cache = ReferenceCache(tmp_path, LARGE)
    for age, key in enumerate(reversed(keys)):
        get(cache, maker, key)
        os.utime(tmp_path / key.digest / "pin", (age + 1, age + 1))
    cache.close()
    reader = ReferenceCache(tmp_path, LARGE)
    in_use = get(reader, maker, keys[3])
    os.utime(tmp_path / keys[3].digest / "pin", (1, 1))
    size = sum(path.stat().st_size for path in (tmp_path / keys[0].digest).rglob("*"))

    small = ReferenceCache(tmp_path, int(2.5 * size))
    get(small, maker, OTHER)

    left = {path.name for path in tmp_path.iterdir() if path.is_dir()}
    assert left == {keys[3].digest, OTHER.digest}
    assert in_use.trace.load(0, in_use.trace.ranks[0].tensors[LOSS]).dtype == torch.float64
    reader.close()
    ReferenceCache(tmp_path, 0)._shrink()
    assert names(tmp_path) == {OTHER.digest, f"{OTHER.digest}.lock"}
    small.close()


def test_a_cache_whose_folder_was_deleted_is_closed_without_an_error(
    tmp_path: Path, maker: Maker
) -> None:
    cache = ReferenceCache(tmp_path / "references", LARGE)
    get(cache, maker)
    shutil.rmtree(tmp_path / "references")

    cache.close()
