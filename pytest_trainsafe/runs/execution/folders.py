"""The folders of a session's Runs, below one root."""

from __future__ import annotations

import contextlib
import shutil
import threading
from pathlib import Path

from pytest_trainsafe.trace.reader import Trace


class Folders:
    """Creates the folders of Runs below `root`; other processes may use the same root."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._count = self._kept = 0
        self._lock = threading.Lock()

    def new(self, name: str) -> Path:
        """Creates a new folder for one Run's trace and logs, which only this user can enter."""
        with self._lock:
            while True:
                self._count += 1
                path = self.root / f"{self._count:04d}-{name}"
                self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
                with contextlib.suppress(FileExistsError):  # of another worker, or an earlier run
                    path.mkdir(mode=0o700)
                    return path

    def keep(self, trace: Trace) -> Path:
        """Copies a trace to a folder that is kept when its Run is removed; returns the path."""
        with self._lock:
            self._kept += 1
            folder = self.root / "kept" / str(self._kept)
        shutil.copytree(trace.path, folder)
        return folder
