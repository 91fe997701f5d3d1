"""Runs tasks in groups of ranks once slots for the ranks are free."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.launch import GroupResult, Task
from pytest_trainsafe.launch.choose import Launchers
from pytest_trainsafe.launch.forkserver.preforked import PreforkedGroup
from pytest_trainsafe.launch.protocol import CountsSlots
from pytest_trainsafe.launch.resources.leases import Leases
from pytest_trainsafe.runs.progress.board import TRAINING, WAITING, Enter


class Groups:
    """The launchers of a session and its slots on the machine; `stop` ends all groups.

    `shared` is the folder that all processes of a pytest run use, and `controller` the id of the
    process that started them; None if there is only this process.  `note` gets sentences for the
    terminal summary.
    """

    def __init__(
        self,
        settings: Settings,
        shared: Path,
        controller: int | None,
        note: Callable[[str], None],
    ) -> None:
        self.stop = threading.Event()
        self.leases = Leases(settings.slots)
        self.launchers = Launchers(
            settings.launcher,
            shared / "trainsafe",
            controller or os.getpid(),
            note,
            settings.network,
            settings.launchers,
            settings.max_threads,
        )

    def launch(
        self,
        task: Task,
        timeout: float,
        workdir: Path,
        *,
        script: bool = False,
        stop: threading.Event | None = None,
        environ: Mapping[str, str] | None = None,
        joined: Callable[[], object] = lambda: None,
        enter: Enter = lambda stage, behind="": None,
    ) -> GroupResult:
        """Runs a task once slots for its ranks are free, until `stop` is set or the session closes.

        `environ` is as in `Launcher.run`; `joined` is called when the task is in the queue for
        slots, and `enter` when it waits for other test runs and when it has its slots.
        """
        stop = stop or self.stop
        scheduled = task.schedule is not None
        launcher = self.launchers.of(script=script, scheduled=scheduled, stop=self.stop)
        slots = launcher.slots(task) if isinstance(launcher, CountsSlots) else task.world_size
        with (
            PreforkedGroup(launcher, task, workdir, environ) as preforked,
            self.leases.take(
                *(slots, task.device, stop, preforked.begin, joined),
                waits=lambda runs: enter(WAITING, runs),
            ) as lease,
        ):
            enter(TRAINING)
            return preforked.run(lease.env, timeout, stop)
