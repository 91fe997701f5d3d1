"""Which launcher starts a group: the one the user named, or the one that suits the program.

Functions go to the warm launcher, whose ranks are forked from a process that has imported torch
already.  Scripts go to torchrun, since what a script expects of its process is its own affair.
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
    """The launchers of one pytest process, each made when it is first needed.

    `wanted` is "auto", "warm" or "torchrun"; `network` is as in `TorchrunLauncher`.  `folder` and
    `controller` are shared by the processes of one pytest run: there they find one fork server,
    and with that process it ends.
    `tell` takes what the user should know, such as why ranks were not forked.
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
        """The launcher of a program that is a script, or a function."""
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
        """End the fork server, if it is this process's own."""
        if self._server is not None:
            self._server.close()

    def _address(self, stop: threading.Event) -> str:
        if self._controller == os.getpid():
            self._server = WarmServer.start()
            return self._server.address
        self._folder.mkdir(parents=True, exist_ok=True)
        told = self._folder / "warm-address"
        with wait_lock(self._folder / "warm-lock", stop):
            if not told.exists():
                self._server = WarmServer.start(controller=self._controller)
                told.write_text(self._server.address)
            return told.read_text()
