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

#: The package's own launchers: name -> import path of the function that creates the launcher.
BUILT_IN = {
    "warm": "pytest_trainsafe.launch.forkserver.launcher:make",
    "torchrun": "pytest_trainsafe.launch.torchrun.launcher:make",
    "threads": "pytest_trainsafe.launch.threads.launcher:make",
}

#: The launcher that keeps Schedules.
SCHEDULING = "threads"


class LauncherError(DeclarationError):
    """A launcher that a project added cannot be made; the message says which and why."""


class Launchers:
    """The launchers of one pytest process, each created on first use.

    `choice` is "auto" or the name of a launcher.  `added` lists a name and an import path for each
    launcher that the project adds.  `network` is "private", "host" or "auto", as in
    `TorchrunLauncher`.  `folder` is shared by the processes of one pytest run, which find their
    common fork server there; the server ends when the process with the id `controller` ends.
    `warn` receives warnings for the user, such as why ranks were not forked.  `max_threads` is how
    many ranks the launcher `threads` runs in one process.
    """

    def __init__(
        self,
        choice: str,
        folder: Path,
        controller: int,
        warn: Callable[[str], None],
        network: str = "auto",
        added: Iterable[tuple[str, str]] = (),
        max_threads: int = 64,
    ) -> None:
        self.choice = choice
        self._paths = {**BUILT_IN, **dict(added)}
        self._setup = LaunchSetup(network, folder, controller, warn, max_threads)
        self._made: dict[str, Launcher] = {}
        self._lock = threading.Lock()

    def of(self, *, script: bool, stop: threading.Event, scheduled: bool = False) -> Launcher:
        """The launcher for a script, or for a function if `script` is false.

        With `scheduled`, the one whose ranks take turns as a Schedule says.  Setting `stop` ends
        the wait for a launcher that another process is preparing.
        Raises LauncherError if the launcher cannot be made.
        """
        name = SCHEDULING if scheduled else self._name(script)
        with self._lock:
            if name not in self._made:
                self._made[name] = _make(name, self._paths[name], self._setup, stop)
            return self._made[name]

    def load(self, *, script: bool, scheduled: bool = False) -> None:
        """Imports the module of a launcher.  Ignores errors, because `of` raises them.

        The main thread calls this before other threads call `of`.  pytest builds the syntax trees
        of some modules when they are imported, and before Python 3.13 two threads that do so at
        once may fail (python/cpython#106905).
        """
        with contextlib.suppress(Exception):
            resolve_name(self._paths[SCHEDULING if scheduled else self._name(script)])

    def _name(self, script: bool) -> str:
        if self.choice == "auto":
            return "torchrun" if script else "warm"
        return self.choice

    def close(self) -> None:
        """Closes the launchers that keep something for the whole run, such as a fork server."""
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
            "the hook pytest_trainsafe_launchers must return the import path of a class or a "
            'function that takes a LaunchSetup, such as "package.module:make"'
        ) from error
    if not isinstance(found, Launcher):
        raise LauncherError(
            f"{path!r} made an object of type {type(found).__name__} as the launcher {name!r}; a "
            "launcher must have the attribute `name` and the method `run` of "
            "pytest_trainsafe.launch.Launcher"
        )
    return found
