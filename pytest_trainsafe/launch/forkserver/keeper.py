"""The keeper: starts the fork server, replaces it when it dies, and outlives it to clean up.

    python -m pytest_trainsafe.launch.forkserver.keeper \\
        SOCKET LEARN LIFE LOCK CONTROLLER DIRECTORY PRELOAD...

Started by `WarmServer`; does not import torch.  SOCKET, LEARN, LIFE and LOCK are inherited
descriptors.
SOCKET listens for clients, and LEARN receives names of modules to preload.  The keeper holds both,
so that clients who connect while there is no server wait for the next one.  CONTROLLER is the
process id of the pytest process that owns the server, and LIFE becomes readable when this process
closes the server or ends.  When this happens, the keeper kills all processes below it and removes
DIRECTORY, which holds the server's files and which LOCK locks.  PRELOAD are names of modules that
the server imports.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
from pathlib import Path

from pytest_trainsafe.launch.supervise import reaper

#: Exit code of a server that found that it is not safe to fork; its log has the reason.
UNSAFE = 78

#: The keeper gives up when so many servers in a row died before they were ready.
_ATTEMPTS = 3


def main(fds: list[int], controller: int, directory: Path, preload: list[str]) -> None:
    """Keeps a server alive until the process `controller` closes it or ends, then cleans up.

    `fds` are four descriptors: the server's socket for clients, its socket for names of modules,
    one that becomes readable when the controller closes the server, and the lock of the folder.
    `preload` are names of modules that the server imports.
    """
    reaper.prctl(reaper.PR_SET_CHILD_SUBREAPER, 1)
    reaper.stay()
    *sockets, life, lock = fds
    for fd in (life, lock):  # the lock is held as long as this process lives
        os.set_inheritable(fd, False)
    try:
        alive = [life, os.pidfd_open(controller)]
        _keep(alive, sockets, directory, preload)
    except ProcessLookupError:
        pass
    for fd in sockets:  # refuses connections from now on
        os.close(fd)
    reaper.sweep()
    if directory.exists() and (directory / "gave-up").exists():
        select.select(alive, [], [])  # keep the log with the reason until the controller ends
    shutil.rmtree(directory, ignore_errors=True)


def _keep(alive: list[int], sockets: list[int], directory: Path, preload: list[str]) -> None:
    wakeup = reaper.wake_on_children()
    server, failures = 0, 0
    while failures < _ATTEMPTS:
        if not server:
            server = _start(sockets, directory, preload)
        ready, _, _ = select.select([*alive, wakeup], [], [], 1.0)
        if wakeup in ready:
            os.read(wakeup, 4096)
        if set(ready) & set(alive):
            return
        for pid, status in reaper.reap():
            if pid == server:
                server = 0
                code = os.waitstatus_to_exitcode(status)
                how = f"signal {-code}" if code < 0 else f"exit code {code}"
                _note(directory, f"the fork server died ({how})")
                was_ready = directory / f"ready-{pid}"
                failures = 0 if was_ready.exists() else failures + 1
                was_ready.unlink(missing_ok=True)
    (directory / "gave-up").touch()


def _start(sockets: list[int], directory: Path, preload: list[str]) -> int:
    for fd in sockets:
        os.set_inheritable(fd, True)
    command = [sys.executable, "-u", "-P", "-m", "pytest_trainsafe.launch.forkserver.server"]
    return reaper.start([*command, *map(str, sockets), str(directory), *preload])


def _note(directory: Path, line: str) -> None:
    with (directory / "log.txt").open("a") as log:
        log.write(line + "\n")


if __name__ == "__main__":
    signal.set_wakeup_fd(-1)
    *descriptors, controller = map(int, sys.argv[1:6])
    main(descriptors, controller, Path(sys.argv[6]), sys.argv[7:])
