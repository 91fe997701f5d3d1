"""The folder in which a rank's `multiprocessing` keeps its sockets, removed with the group.

`multiprocessing` makes it on first use, below TMPDIR ("pymp-..."), and removes it when the process
ends; a rank with data loader workers that is killed would leave it behind.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
from multiprocessing import process
from pathlib import Path

#: What `multiprocessing` adds, and the longest name of a socket (sun_path of unix(7)).
_SOCKET, _LONGEST = "/listener-12345678", 107
_PREFIX = "pymp-"


def provide(folder: Path) -> None:
    """Have this process and its children keep their sockets in `folder`.

    Where its path is too long for a socket, it becomes a link to a folder with a short path; where
    there is none, `multiprocessing` chooses a folder as usual.
    """
    config = process.current_process()._config  # type: ignore[attr-defined]
    if _fits(str(folder)):
        folder.mkdir(mode=0o700, exist_ok=True)
        config["tempdir"] = str(folder)
        return
    chosen = tempfile.tempdir
    below = [tempfile.gettempdir(), "/tmp"]
    tempfile.tempdir = chosen  # the program may still set TMPDIR
    for parent in below:
        if _fits(os.path.join(parent, f"{_PREFIX}12345678")):
            with contextlib.suppress(OSError):
                config["tempdir"] = tempfile.mkdtemp(prefix=_PREFIX, dir=parent)
                folder.symlink_to(config["tempdir"])
                return


def _fits(folder: str) -> bool:
    return len(os.fsencode(folder + _SOCKET)) <= _LONGEST


def remove(folder: Path) -> None:
    """Remove the folder, and what it is a link to; called once no process of the rank lives."""
    with contextlib.suppress(OSError):
        if not folder.is_symlink():
            shutil.rmtree(folder)
            return
        target = Path(os.readlink(folder))
        folder.unlink()
        found = target.lstat()
        ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
        if ours and target.name.startswith(_PREFIX):
            shutil.rmtree(target)
