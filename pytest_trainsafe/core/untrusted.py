"""Reads files that another process may have written: traces, cache entries, ranks' files.

Whatever is at a path, reading it never blocks and never takes more memory than the caller
allows: only regular files are opened, links are not followed, and sizes are checked first.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import msgspec

from pytest_trainsafe.errors import TrainsafeError
from pytest_trainsafe.printable import printable

#: What msgspec raises for malformed data of any kind.
MALFORMED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

#: Do not follow links, wait for a pipe, become a controlled terminal, or leak to children.
_CAREFULLY = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC

_CHUNK = 1 << 20


class BadFileError(TrainsafeError, OSError):
    """A path that must not be read; `strerror` gives the reason, without the path."""

    def __init__(self, reason: str, path: Path) -> None:
        super().__init__(errno.EINVAL, reason, str(path))


def open_file(
    path: Path, *, below: Path | None = None, max_bytes: int | None = None, follow: bool = False
) -> int:
    """Opens the regular file at `path` for reading; the caller closes the descriptor.

    The file must not be a link, unless `follow` is set.  With `below`, a folder above `path`,
    no folder between the two may be a link either, so the file cannot be outside of `below`.
    Raises FileNotFoundError, another OSError, or BadFileError if `path` is not a regular file or
    has more than `max_bytes` bytes.
    """
    if "\0" in str(path):
        raise BadFileError("its name has a null character", path)
    folder = None if below is None else _folder_of(path, below)
    name = path if folder is None else Path(path.name)
    flags = os.O_RDONLY | (_CAREFULLY & ~os.O_NOFOLLOW if follow else _CAREFULLY)
    try:
        # Checked before opening: opening a device may already have an effect.
        status = os.stat(name, dir_fd=folder, follow_symlinks=follow)
        require_regular(status, path)
        descriptor = os.open(name, flags, dir_fd=folder)
    except UnicodeEncodeError as error:
        raise BadFileError(f"its name is not a valid file name ({error.reason})", path) from None
    except OSError as error:
        if isinstance(error, BadFileError):
            raise
        raise _with_path(error, path) from None
    finally:
        if folder is not None:
            os.close(folder)
    try:
        status = os.fstat(descriptor)
        require_regular(status, path)
        if max_bytes is not None and status.st_size > max_bytes:
            raise BadFileError(f"it has {status.st_size} bytes, but the limit is {max_bytes}", path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_file(path: Path, *, below: Path | None = None, max_bytes: int) -> bytes:
    """The content of the regular file at `path`, at most `max_bytes` bytes.

    Raises the errors of `open_file`, also if the file grows beyond `max_bytes` while it is read.
    """
    descriptor = open_file(path, below=below, max_bytes=max_bytes)
    try:
        chunks, size = [], 0
        while chunk := os.read(descriptor, max(_CHUNK, os.fstat(descriptor).st_size - size)):
            chunks.append(chunk)
            size += len(chunk)
            if size > max_bytes:
                raise BadFileError(f"it grew beyond the limit of {max_bytes} bytes", path)
        return b"".join(chunks)
    finally:
        os.close(descriptor)


def shown(text: object, max_length: int = 500) -> str:
    """Text from a file, safe for a message: shortened, control characters escaped."""
    found = str(text)
    return printable(found if len(found) <= max_length else f"{found[:max_length]}...")


def require_regular(status: os.stat_result, path: Path) -> None:
    """Raises BadFileError unless `status` is that of a regular file."""
    if not stat.S_ISREG(status.st_mode):
        raise BadFileError(f"it is {_kind(status.st_mode)}, not a regular file", path)


def _folder_of(path: Path, below: Path) -> int:
    """Opens the folder of `path` and returns its descriptor; follows no links below `below`."""
    flags = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
    folder = os.open(below, flags)
    for name in path.relative_to(below).parts[:-1]:
        try:
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if not stat.S_ISDIR(status.st_mode):
                raise BadFileError(f"{name} is {_kind(status.st_mode)}, not a folder", path)
            inner = os.open(name, flags | os.O_NOFOLLOW, dir_fd=folder)
        except OSError as error:
            if isinstance(error, BadFileError):
                raise
            raise _with_path(error, path) from None
        finally:
            os.close(folder)
        folder = inner
    return folder


def _with_path(error: OSError, path: Path) -> OSError:
    """The same error with the whole path, in place of a name relative to a folder."""
    return OSError(error.errno, error.strerror, str(path))


def _kind(mode: int) -> str:
    kinds = (
        (stat.S_ISLNK, "a symbolic link"),
        (stat.S_ISDIR, "a folder"),
        (stat.S_ISFIFO, "a pipe"),
        (stat.S_ISSOCK, "a socket"),
        (stat.S_ISCHR, "a device"),
        (stat.S_ISBLK, "a device"),
    )
    return next((name for test, name in kinds if test(mode)), "of an unknown kind")
