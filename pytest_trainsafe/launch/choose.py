"""Chooses the launcher of a group: the one the user named, or the one that suits the program.

Launchers are known by name and import path: those of the package, and those that a project adds
with the hook `pytest_trainsafe_launchers`.  By default functions go to the warm launcher, whose
ranks are forked from a process that has already imported torch, and scripts go to torchrun,
because a script may depend on how its process was started.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from pkgutil import resolve_name

from pytest_trainsafe.errors import DeclarationError
from pytest_trainsafe.launch.protocol import Closes, Launcher, LaunchSetup

#: The launchers of the package by name: what makes each, by import path.
BUILT_IN = {
    "warm": "pytest_trainsafe.launch.forkserver.launcher:make",
    "torchrun": "pytest_trainsafe.launch.torchrun.launcher:make",
}


class LauncherError(DeclarationError):
    """A launcher that a project added cannot be made; the message says which and why."""


class Launchers:
    """The launchers of one pytest process, each created on first use.

    `choice` is "auto" or the name of a launcher; `added` are those of a project, by name and
    import path.  `network` is as in `TorchrunLauncher`.  `folder` is shared by the processes of
    one pytest run, which find their common fork server there; the server ends when the process
    `controller` ends.  `warn` receives warnings for the user, such as why ranks were not forked.
    """

    def __init__(
        self,
        choice: str,
        folder: Path,
        controller: int,
        warn: Callable[[str], None],
        network: str = "auto",
        added: Iterable[tuple[str, str]] = (),
    ) -> None:
        self.choice = choice
        self._paths = {**BUILT_IN, **dict(added)}
        self._setup = LaunchSetup(network, folder, controller, warn)
        self._made: dict[str, Launcher] = {}
        self._lock = threading.Lock()

    def of(self, *, script: bool, stop: threading.Event) -> Launcher:
        """The launcher for a script, or for a function.

        Setting `stop` ends the wait for a launcher that another process makes ready.
        Raises LauncherError for one that cannot be made.
        """
        name = self._name(script)
        with self._lock:
            if name not in self._made:
                self._made[name] = _make(name, self._paths[name], self._setup, stop)
            return self._made[name]

    def load(self, *, script: bool) -> None:
        """Imports the module of a launcher.  What is wrong with it is raised by `of`.

        The main thread calls it before other threads call `of`.  pytest builds the syntax trees of
        some modules when they are imported, and before Python 3.13 two threads that do so at once
        may fail (python/cpython#106905).
        """
        with contextlib.suppress(Exception):
            resolve_name(self._paths[self._name(script)])

    def _name(self, script: bool) -> str:
        if self.choice == "auto":
            return "torchrun" if script else "warm"
        return self.choice

    def close(self) -> None:
        """Close the launchers that keep something for the whole run, such as a fork server."""
        for launcher in self._made.values():
            if isinstance(launcher, Closes):
                launcher.close()


def _make(name: str, path: str, setup: LaunchSetup, stop: threading.Event) -> Launcher:
    if name in BUILT_IN:
        made: Launcher = resolve_name(path)(setup, stop)
        return made
    try:
        found = resolve_name(path)(setup)
    except (ImportError, AttributeError, TypeError) as error:
        raise LauncherError(
            f"the launcher {name!r} cannot be made from {path!r} ({error}); "
            'pytest_trainsafe_launchers takes "package.module:make", a class or a function that '
            "takes a LaunchSetup and that this process can import"
        ) from error
    if not isinstance(found, Launcher):
        raise LauncherError(
            f"the launcher {name!r}, made by {path!r}, is a {type(found).__name__} without the "
            "attribute `name` or the method `run` of pytest_trainsafe.launch.Launcher"
        )
    return found
