"""The fork server: imports torch once, and forks a reaper with its ranks for each connection.

    python -m pytest_trainsafe.launch.forkserver.server SOCKET LEARN DIRECTORY PRELOAD...

The server's parent process, the keeper (`keeper.py`), starts, replaces and ends the server.  The
server only imports modules: it starts no threads, no process group and no CUDA, and before each
fork it checks that it has neither threads nor CUDA.  Datagrams on LEARN name modules that ranks had
to import themselves.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import weakref
from pathlib import Path
from typing import NoReturn

import msgspec

from pytest_trainsafe.core.untrusted import MALFORMED
from pytest_trainsafe.launch.files import write_whole
from pytest_trainsafe.launch.forkserver.keeper import UNSAFE
from pytest_trainsafe.launch.forkserver.preload import SAFE, Trial, start_trial, unsafe
from pytest_trainsafe.launch.resources.peer import peer
from pytest_trainsafe.launch.supervise import reaper

#: Importing these imports exactly the modules that a rank has when it wraps torch's functions.
_FIRST = (
    "pytest_trainsafe.launch.collectives.ledger",
    "pytest_trainsafe.launch.collectives.flight_save",
)

#: Modules that nearly every training program uses.
_PRELOAD = (
    *("torch.distributed.device_mesh", "torch.nn.parallel", "torch.optim"),
    *("torch.utils.checkpoint", "torch.utils.data"),
    *("safetensors.torch", "pytest_trainsafe.record.program"),
    *("pytest_trainsafe.record.program_dtype.before_fork",),
    *("pytest_trainsafe.annotations.declared", "yaml"),
    *("pytest_trainsafe.frameworks.torch_native.adapter",),
    *("pytest_trainsafe.frameworks.deepspeed.adapter",),
    *("pytest_trainsafe.launch.threads.process",),
    *("pytest_trainsafe.launch.forkserver.group", "pytest_trainsafe.launch.resources.temporary"),
)

#: Limits of thread pools: a child that is forked from a process with a pool could wait forever for
#: the pool's threads, which it does not have.
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


class Server:
    """The main loop of the fork server."""

    def __init__(self, listening: int, learning: int, directory: Path) -> None:
        self.directory = directory
        self.listening = socket.socket(fileno=listening)
        self.learning = socket.socket(fileno=learning)
        for each in (self.listening, self.learning):
            each.setblocking(False)
            each.set_inheritable(False)
        self.base = dict(os.environ)
        self.reapers: set[int] = set()
        self.queue: list[str] = []
        self.trial: Trial | None = None
        self.learned: list[str] = []
        self.never: dict[str, str] = {}
        self._memory = directory / "learned.json"

    def boot(self, preload: list[str]) -> None:
        """Imports the modules that every rank needs, and starts to learn others.

        The modules in `preload`, and those that an earlier server learned, are imported only after
        a child process has tried them.
        """
        gc.disable()  # modules stay; the collector would visit their objects again and again
        os.environ.update(_ONE_THREAD, PYTORCH_NVML_BASED_CUDA_CHECK="1")
        for module in [importlib.import_module(name) for name in _FIRST]:
            module.wrap()
        for name in _PRELOAD:
            importlib.import_module(name)
        if self._memory.exists():
            memory = json.loads(self._memory.read_text())
            self.never, preload = memory["never"], [*memory["learned"], *preload]
        self._want(preload)
        self._settle()

    def serve(self) -> NoReturn:
        """Accepts connections, and tries modules to preload, until the keeper ends this process.

        Exits by itself only if this process is no longer safe to fork.
        """
        wakeup = reaper.wake_on_children()
        (self.directory / f"ready-{os.getpid()}").touch()
        while True:
            if self.queue and self.trial is None:
                self.trial = start_trial(self.queue)
                self.queue = []
            trial = [] if self.trial is None else [self.trial.output]
            # The timeout is for children that ended before the SIGCHLD handler was installed.
            waiting = [self.listening.fileno(), self.learning.fileno(), wakeup, *trial]
            ready, _, _ = select.select(waiting, [], [], 1.0)
            if wakeup in ready:
                os.read(wakeup, 4096)
            self._reap()
            # Before the connections: who connects next expects these modules.
            if self.learning.fileno() in ready:
                self._receive_names()
            if self.listening.fileno() in ready:
                self._accept([wakeup, *trial])
            if self.trial is not None and self.trial.output in ready:
                self._read_trial(self.trial)

    def _accept(self, close: list[int]) -> None:
        try:
            connection, _ = self.listening.accept()
        except OSError:  # the client has gone
            return
        pid, uid = peer(connection)
        with connection:
            if uid != os.getuid():
                return
            why = unsafe()
            if why:
                reaper.send(connection, {"refused": f"the fork server {why}"})
                self._leave(why)
            child = os.fork()
            if child:
                self.reapers.add(child)
                return
            self.listening.close()
            self.learning.close()
            for fd in (signal.set_wakeup_fd(-1), *close):
                # An imported library may have changed the wakeup descriptor.
                with contextlib.suppress(OSError):
                    os.close(fd)
            from pytest_trainsafe.launch.forkserver import group as warm_group

            warm_group.serve(connection, pid, self.base, self._status())

    def _status(self) -> dict[str, object]:
        return {
            "server": os.getppid(),
            "learned": self.learned,
            "never": self.never,
            "imported": [name for name in SAFE if name in sys.modules],
            "busy": bool(self.queue or self.trial),
        }

    def _reap(self) -> None:
        for pid, status in reaper.reap():
            if pid not in self.reapers:
                continue
            self.reapers.discard(pid)
            code = os.waitstatus_to_exitcode(status)
            if code:
                self._end_orphans()
                how = f"signal {-code}" if code < 0 else f"exit code {code}"
                with contextlib.suppress(OSError):
                    write_whole(self.directory / f"reaper-{pid}", how.encode())

    def _end_orphans(self) -> None:
        """Kills the remaining processes of a reaper that died; this process has adopted them."""
        known = self.reapers | ({self.trial.pid} if self.trial else set())
        for child in reaper.children():
            if child not in known:
                for pid in (child, *reaper.descendants(child)):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)

    def _receive_names(self) -> None:
        try:
            names = msgspec.json.decode(self.learning.recv(1 << 20), type=list[str])
        except (OSError, *MALFORMED) as error:
            print(f"a request to learn modules was refused: {error}", file=sys.stderr)
            return
        if self._want(names):
            self._settle()

    def _want(self, names: list[str]) -> bool:
        """Imports the modules that are known to be safe, and queues the others for a trial.

        Returns whether it has imported any.
        """
        imported = False
        for name in names:
            if name in sys.modules or name in self.never or name in self.queue:
                continue
            if name in SAFE:
                for each in (name, *SAFE[name]):
                    importlib.import_module(each)
                imported = True
            else:
                self.queue.append(name)
        return imported

    def _read_trial(self, trial: Trial) -> None:
        try:
            chunk = os.read(trial.output, 65536)
        except BlockingIOError:
            return
        if chunk:
            trial.received += chunk
            return
        os.close(trial.output)
        self.trial = None
        good, bad, why = trial.verdict()
        for name in good:
            with contextlib.suppress(Exception):  # it worked in the trial; a rank reports errors
                importlib.import_module(name)
        self.learned += [name for name in good if name in sys.modules]
        if bad:
            self.never[bad] = why
        rest = trial.names[len(good) + bool(bad) :]
        if good or bad:
            self._want(rest)
        self._remember()
        self._settle()

    def _settle(self) -> None:
        """Prepares this process for forking after imports; exits if they made forking unsafe."""
        from pytest_trainsafe.compat import compiler  # imports torch

        compiler.postpone(again=True)
        # Finalizers of this process must not run in the ranks; those of torch's operator
        # libraries alone take 30 ms in each rank.
        for each in list(weakref.finalize._registry):  # type: ignore[attr-defined]
            each.atexit = False
        gc.freeze()
        why = unsafe()
        if why:
            self._leave(why)

    def _remember(self) -> None:
        content = {"learned": self.learned, "never": self.never}
        write_whole(self._memory, json.dumps(content).encode())

    def _leave(self, why: str) -> NoReturn:
        """Exits, so that the keeper starts a new server.

        The new server never imports the modules that this one learned: one of them is to blame.
        """
        print(f"the fork server {why} and is replaced by another", file=sys.stderr)
        self.never |= dict.fromkeys(self.learned, f"a server that had imported it {why}")
        self.learned = []
        self._remember()
        os._exit(UNSAFE)


def main(arguments: list[str]) -> NoReturn:
    """Sends output to the log file, imports the modules, and serves until the process is ended."""
    reaper.prctl(reaper.PR_SET_CHILD_SUBREAPER, 1)
    listening, learning, directory, *preload = arguments
    with (Path(directory) / "log.txt").open("a") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    server = Server(int(listening), int(learning), Path(directory))
    server.boot(preload)
    server.serve()


if __name__ == "__main__":
    main(sys.argv[1:])
