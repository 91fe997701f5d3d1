"""The reference cache: recorded references, shared by tests, xdist workers and later runs.

The session asks it for each reference.  A folder below pytest's cache directory holds

    <digest>/trace        a recorded run, filed under the digest of its key
    <digest>/entry.json   what was hashed into the key, and the hash of every file of the trace
    <digest>/pin          locked by whoever reads the trace; its time says when it was last used
    <digest>.lock         locked by whoever looks for the entry, records it or removes it
    making-<digest>-*     an entry on its way in or out
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import xxhash

from pytest_trainsafe.core.untrusted import MALFORMED, BadFileError, open_file, read_file
from pytest_trainsafe.launch.resources.locks import Lock, try_lock, wait_lock
from pytest_trainsafe.runs.fingerprint import Key
from pytest_trainsafe.runs.sources import content_hash
from pytest_trainsafe.trace.reader import Trace, TraceError

FORMAT = "pytest-trainsafe reference 1"
MAKING = "making-"

#: Most bytes of an entry's manifest: a line for each source file and each file of the trace.
MAX_ENTRY_MANIFEST = 2**26


class EntryManifest(msgspec.Struct, frozen=True):
    """What `entry.json` says.

    `files` has the size and hash of every file of the trace.  `loaded` has the hashes of the
    project's files that the program imported without its source saying so.
    """

    format: str
    key: dict[str, Any]
    files: dict[str, tuple[int, str]]
    loaded: dict[str, str]


@dataclass(frozen=True, slots=True)
class Entry:
    """A recorded reference: its trace, and whether it was there already."""

    trace: Trace
    reused: bool


class ReferenceCache:
    """References below `directory`, of at most `limit` bytes but for those in use."""

    def __init__(self, directory: Path, limit: int) -> None:
        self.directory = directory
        self.limit = limit
        self._pins: dict[str, Lock] = {}
        self._guard = threading.Lock()

    def get(
        self,
        key: Key,
        make: Callable[[Path], Iterable[str]],
        *,
        current: Callable[[], Key | None],
        own: Path,
        stop: threading.Event | None = None,
    ) -> Entry:
        """The reference of a key: the one on file, if every byte of it is sound, or a new one.

        `make` records the run into the folder it is given and returns the files of the project
        that the program imported.  `current` tells the key as it is after that: a run whose
        sources were written meanwhile serves its caller and nobody else, and is left in the
        folder `own`; so is one that takes the place of an unsound entry which others still read,
        and one for which there is no folder that can be written to.
        Others that want the same reference wait.  The entry stays until `close`.  Raises what
        `make` raises, and Stopped when `stop` is set while another makes it.
        """
        lock_file = self.directory / f"{key.digest}.lock"
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            _make_way(lock_file)
            lock = wait_lock(lock_file, stop or threading.Event())
        except OSError:  # a link that leads nowhere, a file, a disk that is full or read-only
            make(own)
            return Entry(Trace.open(own), False)
        with lock:
            entry = self.directory / key.digest
            trace = _sound(entry, key)
            reused = trace is not None
            try:
                if trace is None:
                    if not self._make(entry, key, make, current, own):
                        return Entry(Trace.open(own), False)
                    trace = Trace.open(entry / "trace")
                self._pin(entry)
            finally:
                if not os.path.lexists(entry):
                    lock_file.unlink(missing_ok=True)
        if not reused:
            self._shrink()
        return Entry(trace, reused)

    def close(self) -> None:
        """Let the entries go that were handed out."""
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
        make: Callable[[Path], Iterable[str]],
        current: Callable[[], Key | None],
        own: Path,
    ) -> bool:
        """Record the entry, and say so; a run that cannot be it is left in `own`."""
        if _is_read(entry):  # an unsound one
            make(own)
            return False
        self._clear(key.digest)
        folder = Path(tempfile.mkdtemp(prefix=f"{MAKING}{key.digest}-", dir=self.directory))
        try:
            loaded = {*make(folder / "trace")} - set(key.parts.get("code", {}).get("files", ()))
            if current() != key:
                shutil.move(folder / "trace", own)
                shutil.rmtree(folder)
                return False
            entry_manifest = EntryManifest(
                FORMAT,
                key.parts,
                _files(folder / "trace"),
                {path: content_hash(Path(path)) for path in sorted(loaded)},
            )
            (folder / "entry.json").write_bytes(msgspec.json.encode(entry_manifest))
            folder.rename(entry)
            return True
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    def _pin(self, entry: Path) -> None:
        pin = try_lock(entry / "pin", shared=True)
        assert pin is not None, entry  # who removes entries has the entry's lock first
        os.utime(entry / "pin")
        with self._guard:
            before = self._pins.get(entry.name)
            self._pins[entry.name] = pin
        if before is not None:
            before.release()

    def _clear(self, digest: str) -> None:
        """Remove a digest's entry and what was left half made.  Under the digest's lock."""
        entry = self.directory / digest
        if os.path.lexists(entry):
            aside = Path(tempfile.mkdtemp(prefix=f"{MAKING}{digest}-", dir=self.directory))
            entry.rename(aside / "removed")
        for left in self.directory.glob(f"{MAKING}{digest}-*"):
            shutil.rmtree(left, ignore_errors=True)

    def _shrink(self) -> None:
        """Remove what nobody uses, the least recently used first, down to the limit."""
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
        """Remove an entry, and say so, unless it is in use."""
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


def _sound(entry: Path, key: Key) -> Trace | None:
    """The entry's trace; None unless everything is there as it was written, and still true."""
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
        if any(content_hash(Path(path)) != known for path, known in entry_manifest.loaded.items()):
            return None
        return Trace.open(entry / "trace")
    except (OSError, *MALFORMED, TraceError):
        return None


def _encoded(parts: dict[str, Any]) -> bytes:
    return msgspec.json.encode(parts, order="deterministic")


def _files(folder: Path) -> dict[str, tuple[int, str]]:
    """Size and hash of every file below a folder, by path."""
    return {
        name: (path.lstat().st_size, _hash(path, folder)) for name, path in sorted(_walk(folder))
    }


def _matches_manifest(folder: Path, below: Path, files: dict[str, tuple[int, str]]) -> bool:
    """Whether a folder has just these files.  Sizes come first: only what fits is hashed."""
    left = dict(files)
    there = []
    for name, path in _walk(folder):
        if path.lstat().st_size != left.pop(name, (-1, ""))[0]:
            return False
        there.append((name, path))
    return not left and all(_hash(path, below) == files[name][1] for name, path in there)


def _walk(folder: Path) -> Iterator[tuple[str, Path]]:
    """Every file below a folder, with its path in it; links are not followed."""
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
    """Whether the pin is a file as it should be, or is yet to be made."""
    try:
        return stat.S_ISREG(pin.lstat().st_mode)
    except FileNotFoundError:
        return True


def _is_read(entry: Path) -> bool:
    """Whether somebody reads the entry's trace.  Asked under its digest's lock."""
    if entry.is_symlink() or not entry.is_dir():
        return False
    try:
        pin = try_lock(entry / "pin")
    except BadFileError:  # nobody has locked what is no file
        return False
    if pin is not None:
        pin.release()
    return pin is None


def _make_way(lock_file: Path) -> None:
    """Remove what lies in a lock's place and is no regular file: nobody has locked that."""
    with contextlib.suppress(FileNotFoundError):
        mode = lock_file.lstat().st_mode
        if stat.S_ISDIR(mode):
            shutil.rmtree(lock_file)
        elif not stat.S_ISREG(mode):
            lock_file.unlink()


def _last_used(entry: Path) -> int:
    """When an entry was last handed out, in ns since the epoch; 0 for one that never was."""
    try:
        return (entry / "pin").lstat().st_mtime_ns
    except FileNotFoundError:  # its maker was killed
        return 0


def _size(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*"))
