"""The reaper: a small process which ensures that no process of a group outlives the group.

This file is run as a script and imports neither torch nor this package, so that it starts within
about 30 ms.  The processes of `launch/forkserver` do not run this file, but import functions of it.
The reaper adopts every orphan below it (PR_SET_CHILD_SUBREAPER), including those in sessions of
their own.  When the supervisor requests it, or ends for whatever reason, the reaper sweeps: it
kills all processes below it until none is left.

    python reaper.py CONTROL_FD SUPERVISOR_PID COMMAND...

On the control socket the reaper writes one JSON line when a child ends, {"exit": code}, and one
when the sweep is done, {"leftovers": ["pid name", ...]}; then the reaper exits.  Any input on the
socket, or the end of the connection, requests the sweep.
"""

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import sys
import time

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


def main(control_fd: int, supervisor: int, command: list[str]) -> None:
    """Runs the command and reports its end; at last kills all processes below this one (`sweep`).

    The sweep begins when the supervisor requests it on the control socket, or has ended.
    """
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    stay()
    os.set_inheritable(control_fd, False)
    control = socket.socket(fileno=control_fd)
    try:
        # The socket alone is not enough: a child of the supervisor may hold its other end open.
        alive = [control.fileno(), os.pidfd_open(supervisor)]
    except ProcessLookupError:
        return
    watch(control, alive, {start(command): {}})


def stay() -> None:
    """Ignores the signals that end other processes: the reaper must end last."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)


def watch(control: socket.socket, alive: list[int], children: dict[int, dict[str, object]]) -> None:
    """Reports how each child ends; at last kills all processes below this one (`sweep`).

    `alive` are descriptors.  The sweep begins when one of them becomes readable, because the
    supervisor requests the sweep or has ended.  `children` maps each child's process id to fields
    to add to the message about the child's end.
    """
    wakeup = wake_on_children()
    while True:
        for pid, status in reap():
            if pid in children:
                send(control, {**children.pop(pid), "exit": os.waitstatus_to_exitcode(status)})
        # A child may have ended before the wakeup descriptor was set.
        ready, _, _ = select.select([*alive, wakeup], [], [], 1.0 if children else None)
        if wakeup in ready:
            os.read(wakeup, 4096)
        if set(ready) & set(alive):
            break
    send(control, {"leftovers": sweep()})


def wake_on_children() -> int:
    """Returns a descriptor that becomes readable when a child of this process ends."""
    wakeup_read, wakeup_write = os.pipe()
    os.set_blocking(wakeup_write, False)
    signal.set_wakeup_fd(wakeup_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return wakeup_read


def prctl(option: int, value: int) -> None:
    """Sets an attribute of this process; see prctl(2)."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def start(command: list[str]) -> int:
    """Starts the command in a session of its own; the kernel kills it if the reaper dies.

    Returns its process id.
    """
    reaper = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        if os.getppid() == reaper:
            os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"cannot start {command[0]}: {error}\n".encode())
    os._exit(127)


def reap() -> list[tuple[int, int]]:
    """Collects every child that has ended, without waiting; returns (pid, wait status) of each."""
    ended = []
    try:
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            ended.append(found)
    except ChildProcessError:
        pass
    return ended


def sweep() -> list[str]:
    """Kills all processes below this one until none is left.

    Returns "pid name" for each process that was found at first.
    """
    first = None
    while not childless() and (below := descendants(os.getpid())):
        if first is None:
            first = [f"{pid} {name}" for pid, name in below.items()]
        for pid in below:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)
        reap()
    return first or []


def childless() -> bool:
    """Whether this process, which adopts all orphans below it, has no process below it."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return True
    return False


def children() -> set[int]:
    """The process ids of this process's children.  The kernel may omit some while others exit."""
    found = set()
    for thread in os.listdir("/proc/self/task"):
        with (
            contextlib.suppress(FileNotFoundError),  # the thread has ended
            open(f"/proc/self/task/{thread}/children", encoding="ascii") as file,
        ):
            found |= set(map(int, file.read().split()))
    return found


def descendants(root: int) -> dict[int, str]:
    """The names of all live processes below the process `root`, at any depth, by process id."""
    parents, names = {}, {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{entry}/stat", encoding="utf-8", errors="replace") as file:
                left, _, right = file.read().rpartition(")")
        except OSError:
            continue
        parents[int(entry)] = int(right.split()[1])
        names[int(entry)] = left.partition("(")[2]
    found: dict[int, str] = {}
    grown = True
    while grown:
        more = {p for p, parent in parents.items() if parent == root or parent in found}
        grown = len(more) > len(found)
        found = {pid: names[pid] for pid in more}
    return found


def send(control: socket.socket, message: dict[str, object]) -> None:
    """Sends one line to the supervisor, if it still listens."""
    with contextlib.suppress(OSError):
        control.sendall(json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
