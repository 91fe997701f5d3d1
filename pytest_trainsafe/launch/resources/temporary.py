"""The folder in which `multiprocessing` keeps a rank's sockets, and its removal.

By default `multiprocessing` creates this folder on first use below TMPDIR ("pymp-...") and
removes it when the process exits.  A rank that has data loader workers and is killed would leave it
behind, so the supervisor of the ranks removes it; if that is killed too, the next run does.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from multiprocessing import process
from pathlib import Path

from pytest_trainsafe.launch.resources import scratch

#: A file name as long as those of `multiprocessing`, and the longest path of a socket (unix(7)).
_SOCKET, _LONGEST = "/listener-12345678", 107
_KIND = "mp"


def provide(folder: Path) -> None:
    """Makes `multiprocessing` keep the sockets of this process and its children in `folder`.

    Creates `folder`.  If its path is too long for a socket, creates a folder with a shorter path
    below TMPDIR or /tmp, and makes `folder` a link to it.  If no path is short enough, changes
    nothing, and `multiprocessing` chooses a folder by itself.
    """
    config = process.current_process()._config  # type: ignore[attr-defined]
    if _fits(str(folder)):
        folder.mkdir(mode=0o700, exist_ok=True)
        config["tempdir"] = str(folder)
        return
    chosen = tempfile.tempdir
    below = [tempfile.gettempdir(), scratch.SHORT]
    tempfile.tempdir = chosen  # the program may still set TMPDIR
    for parent in below:
        if _fits(scratch.longest(_KIND, parent)):
            with contextlib.suppress(OSError):
                made = scratch.make(_KIND, parent)
                try:
                    folder.symlink_to(made.path)
                except OSError:
                    made.remove()
                    raise
                config["tempdir"] = str(made.path)
                return


def _fits(folder: str) -> bool:
    return len(os.fsencode(folder + _SOCKET)) <= _LONGEST


def remove(folder: Path) -> None:
    """Removes the folder, or the link and its target.

    To be called when no process of the rank is left.
    """
    with contextlib.suppress(OSError):
        if not folder.is_symlink():
            shutil.rmtree(folder)
            return
        target = Path(os.readlink(folder))
        folder.unlink()
        if scratch.is_scratch(target):
            shutil.rmtree(target)
