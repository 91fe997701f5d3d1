"""Programs of which rank 1 replaces its own files, as a hostile or broken one may."""

from __future__ import annotations

import os
import time
from pathlib import Path

from pytest_trainsafe.launch import files


def _folder() -> Path:
    """This rank's folder: where its standard output goes."""
    return Path(os.readlink("/proc/self/fd/1")).parent


def _replace(name: str, kind: str) -> None:
    path = _folder() / name
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to("/dev/zero")
    else:
        path.write_bytes(b"[" * 100_000)


def replace(name: str, kind: str) -> str:
    """Rank 1 replaces a file and returns."""
    if os.environ["RANK"] == "1":
        _replace(name, kind)
    return "done"


def replace_and_sit(name: str, kind: str) -> None:
    """Rank 1 replaces a file, and no rank returns."""
    replace(name, kind)
    while True:
        time.sleep(60)


def replace_the_outcome(kind: str) -> str:
    """Rank 1 replaces its outcome where it would be written."""
    if os.environ["RANK"] == "1":
        files.RankFiles.write_outcome = lambda *_: _replace("result.msgpack", kind)  # type: ignore[method-assign]
    return "done"
