"""Which installed distribution a package belongs to, and which build of it is installed.

`importlib.metadata.packages_distributions` answers the first question in a fifth of a second,
because it parses every metadata file as an e-mail; the first test of a run waits for it.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import NamedTuple


class Installed(NamedTuple):
    """A distribution: its name, and its version with a hash of its list of files (RECORD).

    The list has the hash of each file; it changes if another build of the version is installed.
    """

    name: str
    build: str


@cache
def distributions() -> Mapping[str, list[Installed]]:
    """The installed distributions by the top-level names of the packages that they contain."""
    found: dict[str, list[Installed]] = {}
    for each in importlib.metadata.distributions():
        metadata = each.read_text("METADATA") or each.read_text("PKG-INFO") or ""
        record = each.read_text("RECORD") or ""
        name, version = _field("Name", metadata), _field("Version", metadata)
        digest = hashlib.blake2b(record.encode(), digest_size=16).hexdigest()
        declared = (each.read_text("top_level.txt") or "").split()
        for package in declared or sorted(set(_packages(record))):
            found.setdefault(package, []).append(Installed(name, f"{version} {digest}"))
    return found


def _field(name: str, metadata: str) -> str:
    match = re.search(rf"^{name}:[ \t]*(.*?)[ \t]*$", metadata, re.MULTILINE | re.IGNORECASE)
    return match[1] if match else ""


def _packages(record: str) -> Iterator[str]:
    """The top-level names of the Python files in a RECORD, whose lines are "path,hash,size"."""
    for line in record.splitlines():
        path = line.rpartition(",")[0].rpartition(",")[0].strip('"')
        if path.endswith(".py"):
            yield path.partition("/")[0].removesuffix(".py")
