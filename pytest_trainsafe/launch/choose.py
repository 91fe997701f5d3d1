"""Chooses the launcher of a group: the one the user named, or the one that suits the program.

Functions use the warm launcher, whose ranks are forked from a process that has already imported
torch.  Scripts use torchrun, because a script may depend on how its process was started.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

from pytest_trainsafe.launch.forkserver.launcher import WarmLauncher
from pytest_trainsafe.launch.forkserver.start import WarmServer
from pytest_trainsafe.launch.protocol import Launcher
from pytest_trainsafe.launch.resources.locks import wait_lock
from pytest_trainsafe.launch.torchrun.launcher import TorchrunLauncher


class Launchers:
    """The launchers of one pytest process, each created on first use.

    `wanted` is "auto", "warm" or "torchrun"; `network` is as in `TorchrunLauncher`.  `folder` is
    shared by the processes of one pytest run, which find their common fork server there; the
    server ends when the process `controller` ends.
    `tell` receives warnings for the user, such as why ranks were not forked.
    """

    def __init__(
        self,
        wanted: str,
        folder: Path,
        controller: int,
        tell: Callable[[str], None],
        network: str = "auto",
    ) -> None:
        self.wanted = wanted
        self._network = network
        self._folder = folder
        self._controller = controller
        self._tell = tell
        self._torchrun = TorchrunLauncher(network=network)
        self._warm: WarmLauncher | None = None
        self._server: WarmServer | None = None
        self._lock = threading.Lock()

    def of(self, *, script: bool, stop: threading.Event) -> Launcher:
        """The launcher for a script, or for a function."""
        if self.wanted == "torchrun" or (self.wanted == "auto" and script):
            return self._torchrun
        with self._lock:
            if self._warm is None:
                self._warm = WarmLauncher(
                    self._address(stop),
                    network=self._network,
                    fallback=self._torchrun,
                    warn=self._tell,
                )
            return self._warm

    def close(self) -> None:
        """Ends the fork server, if this process owns it."""
        if self._server is not None:
            self._server.close()

    def _address(self, stop: threading.Event) -> str:
        if self._controller == os.getpid():
            self._server = WarmServer.start()
            return self._server.address
        self._folder.mkdir(parents=True, exist_ok=True)
        address_file = self._folder / "warm-address"
        with wait_lock(self._folder / "warm-lock", stop):
            if not address_file.exists():
                self._server = WarmServer.start(controller=self._controller)
                address_file.write_text(self._server.address)
            return address_file.read_text()
