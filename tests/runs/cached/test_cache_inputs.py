"""A reference is recorded again when what its program read has changed, and else reused."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from pytest_trainsafe.record.reads.notes import EVERY_VARIABLE, LIMIT, Notes, checked, stamp
from pytest_trainsafe.runs.cached import inputs
from pytest_trainsafe.runs.cached.cache import Entry, ReferenceCache
from pytest_trainsafe.runs.cached.fingerprint import Key
from tests.support.runs.cache_writer import record

KEY = Key("0123", {"seed": 0, "code": {"files": {}}})
SECRET = {"TOKEN": "a secret", "OTHER": "1"}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    file = tmp_path / "data.txt"
    file.write_text("1.0\n")
    return file


def reads(*files: Path) -> Notes:
    return Notes(reads={str(file): (0, stamp(str(file))) for file in files})


class Pytest:
    """Runs of pytest that request one reference, whose program reads `notes`."""

    def __init__(self, folder: Path, notes: Notes) -> None:
        self.folder, self.notes = folder, notes

    def get(self, environ: Mapping[str, str] = {}) -> Entry:
        def make(trace: Path) -> Notes:
            record(trace, 1.0)
            return self.notes

        cache = ReferenceCache(self.folder / "cache", 2**40)
        own = self.folder / f"own{len(list(self.folder.iterdir()))}"
        entry = cache.get(KEY, make, environ=environ, current=lambda: KEY, own=own)
        cache.close()
        return entry


def test_a_changed_file_is_read_again_and_an_unchanged_one_is_not(
    tmp_path: Path, data: Path
) -> None:
    runs = Pytest(tmp_path, reads(data))
    assert [runs.get().reused for _ in range(2)] == [False, True]

    before = data.stat()
    data.write_text("2.0\n")
    os.utime(data, ns=(before.st_atime_ns, before.st_mtime_ns))

    assert not runs.get().reused
    data.unlink()
    assert not runs.get().reused


def test_a_file_of_the_same_content_is_unchanged(tmp_path: Path, data: Path) -> None:
    runs = Pytest(tmp_path, reads(data))
    runs.get()
    os.utime(data, (1, 1))
    assert runs.get().reused


def test_a_file_that_appears_is_a_change(tmp_path: Path) -> None:
    later = tmp_path / "later.txt"
    runs = Pytest(tmp_path, reads(later))
    assert [runs.get().reused for _ in range(2)] == [False, True]
    later.write_text("x")
    assert not runs.get().reused


def test_a_link_to_another_file_is_a_change(tmp_path: Path, data: Path) -> None:
    link = tmp_path / "link.txt"
    link.symlink_to(data)
    runs = Pytest(tmp_path, reads(link))
    runs.get()
    (tmp_path / "other.txt").write_text("2.0\n")
    link.unlink()
    link.symlink_to("other.txt")
    assert not runs.get().reused


@pytest.mark.parametrize("bound", ["MAX_HASHED", "MAX_HASHED_TOGETHER"])
def test_a_large_file_counts_by_size_and_time(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    monkeypatch.setattr(inputs, bound, 3)
    runs = Pytest(tmp_path, reads(data))
    assert [runs.get().reused for _ in range(2)] == [False, True]
    os.utime(data, (1, 1))
    assert not runs.get().reused


def test_a_file_that_grows_beyond_the_bound_is_a_change(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = Pytest(tmp_path, reads(data))
    runs.get()
    monkeypatch.setattr(inputs, "MAX_HASHED", 3)
    os.utime(data, (1, 1))
    assert not runs.get().reused


def test_a_file_that_changed_after_it_was_read_is_not_cached(tmp_path: Path, data: Path) -> None:
    runs = Pytest(tmp_path, reads(data))
    data.write_text("other text\n")
    for entry in (runs.get(), runs.get()):
        assert not entry.reused
        assert entry.not_kept == f"{data} changed after the program had opened it"
        assert entry.trace.complete
    assert not (tmp_path / "cache" / KEY.digest).exists()


def test_a_file_that_the_run_wrote_before_reading_does_not_count(
    tmp_path: Path, data: Path
) -> None:
    for written in (data, data.parent):
        notes = Notes(reads={str(data): (5, stamp(str(data)))}, writes={str(written): 4})
        assert notes.inputs() == {}
        assert Notes(reads=notes.reads, writes={str(written): 6}).inputs()
    runs = Pytest(tmp_path, notes)
    runs.get()
    data.write_text("2.0\n")
    assert runs.get().reused


def test_a_changed_variable_is_a_change_and_its_value_is_not_stored(tmp_path: Path) -> None:
    runs = Pytest(tmp_path, Notes(variables=("TOKEN", "NOT_SET")))
    assert [runs.get(SECRET).reused for _ in range(2)] == [False, True]
    assert "a secret" not in (tmp_path / "cache" / KEY.digest / "entry.json").read_text()
    assert runs.get({**SECRET, "OTHER": "2"}).reused
    assert not runs.get({**SECRET, "NOT_SET": ""}).reused
    assert not runs.get({**SECRET, "TOKEN": "another"}).reused
    assert not runs.get({"OTHER": "1"}).reused


def test_any_variable_is_a_change_if_the_program_reads_all(tmp_path: Path) -> None:
    runs = Pytest(tmp_path, Notes(variables=(EVERY_VARIABLE,)))
    assert [runs.get(SECRET).reused for _ in range(2)] == [False, True]
    assert not runs.get({**SECRET, "NEW": ""}).reused


def test_variables_of_pytest_and_of_launchers_do_not_count(tmp_path: Path) -> None:
    set_for_ranks = ("RANK", "WORLD_SIZE", "MASTER_PORT", "OMP_NUM_THREADS", "TORCHELASTIC_RUN_ID")
    names = ("PYTEST_CURRENT_TEST", "PYTEST_XDIST_WORKER", *set_for_ranks)
    runs = Pytest(tmp_path, Notes(variables=(*names, EVERY_VARIABLE)))
    runs.get()
    assert runs.get(dict.fromkeys(names, "1")).reused


def test_a_run_with_incomplete_notes_is_not_cached_and_the_entry_says_why(tmp_path: Path) -> None:
    runs = Pytest(tmp_path, Notes(incomplete="too much"))
    assert [runs.get().reused for _ in range(2)] == [False, False]
    assert runs.get().not_kept == "too much"


HOSTILE: dict[str, object] = {
    "nothing": None,
    "a list": [],
    "a relative path": {"reads": {"data.txt": [0, ""]}},
    "a null": {"reads": {"/data\0": [0, ""]}},
    "a long path": {"reads": {"/" + "x" * 5000: [0, ""]}},
    "no time": {"reads": {"/data": [None, ""]}},
    "a long stamp": {"reads": {"/data": [0, f"{'1' * 21}:1"]}},
    "no stamp": {"reads": {"/data": [0, "x:y"]}},
    "a negative size": {"reads": {"/data": [0, "-1:1"]}},
    "too many files": {"reads": {f"/{number}": [0, ""] for number in range(LIMIT + 1)}},
    "too many variables": {"variables": [str(number) for number in range(LIMIT + 1)]},
    "a number": {"variables": [1]},
    "a mapping of files": {"loaded": {"/data": ""}},
}


@pytest.mark.parametrize("what", HOSTILE)
def test_malformed_notes_of_a_rank_are_incomplete(what: str) -> None:
    assert checked([{}]).incomplete == ""
    assert checked([{}, HOSTILE[what]]).incomplete


@pytest.mark.parametrize("known", ["x:y", ":", "0" * 32, "1:2:3", "too large"])
def test_a_stamp_that_nobody_wrote_never_matches(data: Path, known: str) -> None:
    assert not inputs.Inputs(files={str(data): known}).unchanged({})


def test_a_file_of_another_size_than_a_rank_says_is_a_change(tmp_path: Path, data: Path) -> None:
    for known in ("", "1:1", f"{'9' * 20}:1"):
        notes = checked([{"reads": {str(data): [0, known]}}])
        assert Pytest(tmp_path, notes).get().not_kept.endswith("after the program had opened it")


def test_ranks_notes_are_merged_by_the_earliest_time() -> None:
    first = {"reads": {"/data": [3, "1:1"]}, "writes": {"/out": 1}, "variables": ["B"]}
    second = {"reads": {"/data": [2, "0:0"], "/out": [2, "1:1"]}, "variables": ["A"]}
    notes = checked([first, second])
    assert (notes.inputs(), notes.variables) == ({"/data": "0:0"}, ("A", "B"))
