"""What a recorded Run read, and whether it is still the same.

The cache stores the Inputs of each reference that the ranks noted (`record/reads/`), besides the
sources that are part of its key.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Collection, Mapping
from pathlib import Path

import msgspec

from pytest_trainsafe.errors import TrainsafeError
from pytest_trainsafe.launch.torchrun.launcher import is_launchers
from pytest_trainsafe.record.reads.notes import EVERY_VARIABLE, Notes, stamp
from pytest_trainsafe.runs.cached.sources import content_hash, state_of

#: The most bytes of one file, and of all files of one Run, whose content is hashed at each look-up.
#: Other files count by size and time of modification.
MAX_HASHED, MAX_HASHED_TOGETHER = 2**26, 2**28


class ChangedError(TrainsafeError):
    """A file changed after the Run had read it, so nobody knows what the Run read."""


class Inputs(msgspec.Struct, frozen=True):
    """What a Run read besides the sources in its key.

    `files` maps each file to the hash of its content, to its stamp (`SIZE:MTIME`) if the file is
    large, or to "" if it could not be read.  `variables` maps each environment variable to a hash,
    because values may be secrets.
    """

    files: dict[str, str] = {}
    variables: dict[str, str] = {}

    @classmethod
    def of(cls, notes: Notes, environ: Mapping[str, str], known: Collection[str]) -> Inputs:
        """The Inputs of a Run that was launched in `environ`, without the files `known`.

        Raises ChangedError if a file is no longer as it was when the Run read it.
        """
        files = {path: content_hash(Path(path)) for path in notes.loaded if path not in known}
        left = MAX_HASHED_TOGETHER
        for path, before in sorted(notes.inputs().items()):
            if path in known:
                continue
            size = int(before.partition(":")[0] or 0)
            if size <= min(MAX_HASHED, left):
                left -= size
                files[path] = _hash(path)
            else:
                files[path] = before
            if stamp(path) != before:
                raise ChangedError(f"{path} changed after the program had opened it")
        variables = {name: _of_variable(name, environ) for name in notes.variables if _counts(name)}
        return cls(files, variables)

    def unchanged(self, environ: Mapping[str, str]) -> bool:
        """Whether a Run that is launched in `environ` would read the same."""
        return all(
            _of_variable(name, environ) == known for name, known in self.variables.items()
        ) and all(
            (stamp(path) if ":" in known else _hash(path)) == known
            for path, known in self.files.items()
        )


#: The hashes of files in this process, with the states of the files before they were read.
_hashes: dict[str, tuple[object, str]] = {}

#: A file that was written so recently may change again without another time of modification.
_RECENTLY = 2 * 10**9


def _hash(path: str) -> str:
    """The hash of a file's content; read again only when the file's state changes.

    It is "too large" for a file of more than MAX_HASHED bytes.
    """
    state = state_of(path)
    known = _hashes.get(path)
    if known is not None and known[0] == state:
        return known[1]
    size, _, modified = stamp(path).partition(":")
    found = "too large" if int(size or 0) > MAX_HASHED else content_hash(Path(path))
    if time.time_ns() - int(modified or 0) > _RECENTLY:
        _hashes[path] = (state, found)
    return found


def _counts(name: str) -> bool:
    return not name.startswith("PYTEST_") and not is_launchers(name)


def _of_variable(name: str, environ: Mapping[str, str]) -> str:
    """A hash of the value of a variable, or of all variables; "" if the variable is not set."""
    names = sorted(filter(_counts, environ)) if name == EVERY_VARIABLE else [name]
    if name not in environ and name != EVERY_VARIABLE:
        return ""
    digest = hashlib.blake2b(digest_size=16)
    for each in names:
        for text in (each, environ[each]):
            data = text.encode(errors="surrogateescape")
            digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()
