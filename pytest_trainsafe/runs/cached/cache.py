"""The reference cache: recorded references, shared by tests, xdist workers and later runs.

The session looks up each reference here.  A folder below pytest's cache directory contains

    <digest>/trace        a recorded Run; the digest is that of its key
    <digest>/entry.json   the parts of the key, and the hash of every file of the trace
    <digest>/pin          locked while a process reads the trace; its mtime is the time of last use
    <digest>.lock         locked while a process looks up, records or removes the entry
    making-<digest>-*     an entry that is being written or removed
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import xxhash

from pytest_trainsafe.core.prepared import prepared
from pytest_trainsafe.core.untrusted import MALFORMED, BadFileError, open_file, read_file
from pytest_trainsafe.launch.resources.locks import Lock, try_lock, wait_lock
from pytest_trainsafe.record.reads.notes import Notes
from pytest_trainsafe.runs.cached.fingerprint import Key
from pytest_trainsafe.runs.cached.inputs import ChangedError, Inputs
from pytest_trainsafe.trace.reader import Trace, TraceError

FORMAT = "pytest-trainsafe reference 2"
MAKING = "making-"

#: The maximum size of `entry.json` in bytes; it grows with the number of source and trace files.
MAX_ENTRY_MANIFEST = 2**26


@prepared
class EntryManifest(msgspec.Struct, frozen=True):
    """The content of `entry.json`.

    `files` has the size and hash of every file of the trace.  `inputs` is what the program read
    besides the sources in its key.
    """

    format: str
    key: dict[str, Any]
    files: dict[str, tuple[int, str]]
    inputs: Inputs


@dataclass(frozen=True, slots=True)
class Entry:
    """A recorded reference: its trace, and whether the cache already had it.

    `not_kept` says why what the program reads is not known well enough to reuse the reference; ""
    if it is.
    """

    trace: Trace
    reused: bool
    not_kept: str = ""


class ReferenceCache:
    """The references below `directory`.

    If they exceed `limit` bytes together, references that no process uses are removed.
    """

    def __init__(self, directory: Path, limit: int) -> None:
        self.directory = directory
        self.limit = limit
        self._pins: dict[str, Lock] = {}
        self._guard = threading.Lock()

    def get(
        self,
        key: Key,
        make: Callable[[Path], Notes],
        *,
        environ: Mapping[str, str],
        current: Callable[[], Key | None],
        own: Path,
        stop: threading.Event | None = None,
    ) -> Entry:
        """The reference of a key: the cached one if all its hashes match, or a new one.

        `make` records the Run into the given folder and returns what the program read; `current`
        then computes the key again.  `environ` is the environment in which the Run is launched: a
        cached reference is reused only if what its program read is unchanged.
        In four cases the new Run is not cached but left in the folder `own`, for this caller only:
        if sources or files that the program reads were written meanwhile, if the notes on what it
        reads are incomplete, if another process still reads the damaged entry that the Run would
        replace, or if the cache directory is not writable.
        Other processes that request the same reference wait.  The entry is not removed before
        `release` or `close`.  Raises any error of `make`, and Stopped if `stop` is set while
        another process records the reference.
        """
        lock_file = self.directory / f"{key.digest}.lock"
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            _make_way(lock_file)
            lock = wait_lock(lock_file, stop or threading.Event())
        except OSError:  # a broken link, a file instead of a folder, a full or read-only disk
            make(own)
            return Entry(Trace.open(own), False)
        with lock:
            entry = self.directory / key.digest
            trace = _sound(entry, key, environ)
            reused = trace is not None
            try:
                if trace is None:
                    cached, why = self._make(entry, key, make, environ, current, own)
                    if not cached:
                        return Entry(Trace.open(own), False, why)
                    trace = Trace.open(entry / "trace")
                self._pin(entry)
            finally:
                if not os.path.lexists(entry):
                    lock_file.unlink(missing_ok=True)
        if not reused:
            self._shrink()
        return Entry(trace, reused)

    def release(self, digest: str) -> None:
        """Releases one entry that `get` returned, so that it may be removed."""
        with self._guard:
            pin = self._pins.pop(digest, None)
        if pin is not None:
            pin.release()

    def close(self) -> None:
        """Releases the entries that `get` returned, so that they may be removed."""
        with self._guard:
            pins, self._pins = self._pins, {}
        for pin in pins.values():
            pin.release()
        if pins:
            self._shrink()

    def _make(
        self,
        entry: Path,
        key: Key,
        make: Callable[[Path], Notes],
        environ: Mapping[str, str],
        current: Callable[[], Key | None],
        own: Path,
    ) -> tuple[bool, str]:
        """Records the entry; returns whether it did, or else left the Run in `own`.

        Also returns why what the program reads is not known; "" if it is.
        """
        if _is_read(entry):  # a damaged entry
            make(own)
            return False, ""
        self._clear(key.digest)
        folder = Path(tempfile.mkdtemp(prefix=f"{MAKING}{key.digest}-", dir=self.directory))
        try:
            notes = make(folder / "trace")
            sources = key.parts.get("code", {}).get("files", ())
            why, inputs = notes.incomplete, Inputs()
            try:
                inputs = inputs if why else Inputs.of(notes, environ, sources)
            except ChangedError as error:
                why = str(error)
            if why or current() != key:
                shutil.move(folder / "trace", own)
                shutil.rmtree(folder)
                return False, why
            entry_manifest = EntryManifest(FORMAT, key.parts, _files(folder / "trace"), inputs)
            (folder / "entry.json").write_bytes(msgspec.json.encode(entry_manifest))
            folder.rename(entry)
            return True, ""
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    def _pin(self, entry: Path) -> None:
        pin = try_lock(entry / "pin", shared=True)
        assert pin is not None, entry  # removing it needs the lock on <digest>.lock, which we hold
        os.utime(entry / "pin")
        with self._guard:
            before = self._pins.get(entry.name)
            self._pins[entry.name] = pin
        if before is not None:
            before.release()

    def _clear(self, digest: str) -> None:
        """Removes the entry of a digest, and its folders `making-<digest>-*`.

        The caller must hold the lock on `<digest>.lock`.
        """
        entry = self.directory / digest
        if os.path.lexists(entry):
            aside = Path(tempfile.mkdtemp(prefix=f"{MAKING}{digest}-", dir=self.directory))
            entry.rename(aside / "removed")
        for left in self.directory.glob(f"{MAKING}{digest}-*"):
            shutil.rmtree(left, ignore_errors=True)

    def _shrink(self) -> None:
        """Removes unused entries, least recently used first, until the size is below the limit."""
        entries = []
        half_made = set()
        try:
            present = list(self.directory.iterdir())
        except FileNotFoundError:  # cleared by another pytest run
            return
        for path in present:
            if path.name.startswith(MAKING):
                half_made.add(path.name.split("-")[1])
            elif path.is_dir() and not path.is_symlink():
                with contextlib.suppress(OSError):
                    entries.append((_last_used(path), path, _size(path)))
        excess = sum(size for _, _, size in entries) - self.limit
        for _, path, size in sorted(entries):
            if excess <= 0:
                break
            if self._remove(path.name):
                excess -= size
        for digest in half_made:
            if not (self.directory / digest).exists():
                self._remove(digest)

    def _remove(self, digest: str) -> bool:
        """Removes the entry of a digest unless it is in use; returns whether it was removed."""
        lock_file = self.directory / f"{digest}.lock"
        try:
            _make_way(lock_file)
            lock = try_lock(lock_file)
        except OSError:
            return False
        if lock is None:
            return False
        with lock:
            entry = self.directory / digest
            if _is_read(entry):
                return False
            self._clear(digest)
            lock_file.unlink(missing_ok=True)
        return True


def _sound(entry: Path, key: Key, environ: Mapping[str, str]) -> Trace | None:
    """The entry's trace; None if its key, the hash of any of its files or an input has changed."""
    try:
        below = entry.parent
        data = read_file(entry / "entry.json", below=below, max_bytes=MAX_ENTRY_MANIFEST)
        entry_manifest = msgspec.json.decode(data, type=EntryManifest)
        if entry_manifest.format != FORMAT or _encoded(entry_manifest.key) != _encoded(key.parts):
            return None
        if not _is_pin(entry / "pin") or not _matches_manifest(
            entry / "trace", below, entry_manifest.files
        ):
            return None
        if not entry_manifest.inputs.unchanged(environ):
            return None
        return Trace.open(entry / "trace")
    except (OSError, *MALFORMED, TraceError):
        return None


def _encoded(parts: dict[str, Any]) -> bytes:
    return msgspec.json.encode(parts, order="deterministic")


def _files(folder: Path) -> dict[str, tuple[int, str]]:
    """Size and hash of every file below a folder, by relative path."""
    return {
        name: (path.lstat().st_size, _hash(path, folder)) for name, path in sorted(_walk(folder))
    }


def _matches_manifest(folder: Path, below: Path, files: dict[str, tuple[int, str]]) -> bool:
    """Whether a folder has exactly the files in `files`, with these sizes and hashes.

    `files` maps paths relative to `folder` to sizes and hashes.  Hashes are computed only if all
    sizes match.  `below` is an outer folder that contains `folder`; raises OSError if a file is a
    link, or if any folder on the way from `below` to the file is one.
    """
    left = dict(files)
    there = []
    for name, path in _walk(folder):
        if path.lstat().st_size != left.pop(name, (-1, ""))[0]:
            return False
        there.append((name, path))
    return not left and all(_hash(path, below) == files[name][1] for name, path in there)


def _walk(folder: Path) -> Iterator[tuple[str, Path]]:
    """Every file below a folder, with its relative path; links are not followed."""
    for root, _, names in os.walk(folder):
        for name in names:
            path = Path(root, name)
            yield str(path.relative_to(folder)), path


def _hash(path: Path, below: Path) -> str:
    digest = xxhash.xxh3_128()
    with os.fdopen(open_file(path, below=below), "rb", buffering=0) as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def _is_pin(pin: Path) -> bool:
    """Whether the pin is a regular file or does not exist yet."""
    try:
        return stat.S_ISREG(pin.lstat().st_mode)
    except FileNotFoundError:
        return True


def _is_read(entry: Path) -> bool:
    """Whether a process reads the entry's trace, and so holds a lock on the entry's file `pin`.

    The caller must hold the lock on `<digest>.lock`, so that no process begins to read meanwhile.
    """
    if entry.is_symlink() or not entry.is_dir():
        return False
    try:
        pin = try_lock(entry / "pin")
    except BadFileError:  # only a regular file can be locked
        return False
    if pin is not None:
        pin.release()
    return pin is None


def _make_way(lock_file: Path) -> None:
    """Removes a folder, link or device that has the lock file's path.

    A regular file stays, because it can be locked; nothing else can.
    """
    with contextlib.suppress(FileNotFoundError):
        mode = lock_file.lstat().st_mode
        if stat.S_ISDIR(mode):
            shutil.rmtree(lock_file)
        elif not stat.S_ISREG(mode):
            lock_file.unlink()


def _last_used(entry: Path) -> int:
    """When the entry was last used, in ns since the epoch; 0 if never."""
    try:
        return (entry / "pin").lstat().st_mtime_ns
    except FileNotFoundError:  # the process that recorded it was killed
        return 0


def _size(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*"))
