"""The guard: a small process that makes sure no process of a group outlives it.

Started as a file, it imports neither torch nor this package, so that it stands within some
30 ms; the warm launcher's processes import it for the same duties.  It adopts every orphan below
it (PR_SET_CHILD_SUBREAPER), also those in sessions of their own.  When the supervisor asks, or
goes away however violently, the guard kills all that is below it until nothing is left.

    python guard.py CONTROL_FD SUPERVISOR_PID COMMAND...

On the control socket it writes one JSON line when a child ends, {"exit": code}, and one when all
is swept, {"leftovers": ["pid name", ...]}; then it ends.  Anything it reads there, or its end, is
the request to sweep.
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
    """Run the command, report its end, and sweep when asked or left alone."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    stay()
    os.set_inheritable(control_fd, False)
    control = socket.socket(fileno=control_fd)
    try:
        # The socket alone is not enough: a process that the supervisor forked may hold its end.
        alive = [control.fileno(), os.pidfd_open(supervisor)]
    except ProcessLookupError:
        return
    watch(control, alive, {start(command): {}})


def stay() -> None:
    """Ignore what ends other processes: whoever guards goes last."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)


def watch(control: socket.socket, alive: list[int], children: dict[int, dict[str, object]]) -> None:
    """Tell how each child ends, sweep when asked or left alone, and tell what was left.

    `alive` are descriptors that become readable when the supervisor asks or is gone; `children`
    says what the message of a child holds beside its exit code.
    """
    wakeup = wake_on_children()
    while True:
        for pid, status in reap():
            if pid in children:
                tell(control, {**children.pop(pid), "exit": os.waitstatus_to_exitcode(status)})
        # a child may have ended before there was anything to wake us
        ready, _, _ = select.select([*alive, wakeup], [], [], 1.0 if children else None)
        if wakeup in ready:
            os.read(wakeup, 4096)
        if set(ready) & set(alive):
            break
    tell(control, {"leftovers": sweep()})


def wake_on_children() -> int:
    """A descriptor that becomes readable when a child of this process ends."""
    wakeup_read, wakeup_write = os.pipe()
    os.set_blocking(wakeup_write, False)
    signal.set_wakeup_fd(wakeup_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return wakeup_read


def prctl(option: int, value: int) -> None:
    """Set an attribute of this process; see prctl(2)."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def start(command: list[str]) -> int:
    """Start the command in a session of its own, to be killed if the guard is."""
    guard = os.getpid()
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
        if os.getppid() == guard:
            os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"cannot start {command[0]}: {error}\n".encode())
    os._exit(127)


def reap() -> list[tuple[int, int]]:
    """Every child that ended and was not waited for: (pid, wait status)."""
    ended = []
    try:
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            ended.append(found)
    except ChildProcessError:
        pass
    return ended


def sweep() -> list[str]:
    """Kill everything below this process until nothing is left; say what was there at first."""
    first = None
    while below := descendants(os.getpid()):
        if first is None:
            first = [f"{pid} {name}" for pid, name in below.items()]
        for pid in below:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)
        reap()
    return first or []


def descendants(root: int) -> dict[int, str]:
    """The live processes below `root`: pid to name."""
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


def tell(control: socket.socket, message: dict[str, object]) -> None:
    """Write one line to the supervisor, if it still listens."""
    with contextlib.suppress(OSError):
        control.sendall(json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
