"""A private network for a group of ranks: a network namespace that has only a loopback device.

    python -I -S namespace.py [COMMAND...]

torch's TCPStore and gloo accept any connection.  In a namespace of its own, a group cannot be
reached by other users or other machines.  A group enters the namespace before it opens a socket: in
`forkserver/group.py`, or by running torchrun as the COMMAND of this file.  This file imports
nothing from this package, and runs without `site`, so that the process has one thread.
Without a COMMAND it only tests whether the kernel allows a private network.
"""

import ctypes
import errno
import fcntl
import os
import socket
import struct
import sys
from functools import cache

_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_SIOCGIFFLAGS, _SIOCSIFFLAGS = 0x8913, 0x8914
_IFF_UP = 1
#: struct ifreq, as the calls for flags use it: a name of 16 bytes, the flags, and padding.
_IFREQ = struct.Struct("16sh22x")
_CAPABILITY_VERSION_3 = 0x20080522


class NoNamespace(OSError):
    """The kernel refuses a private network to this process.

    The message says only which step failed; the code that reports it adds what to do.
    """

    def __init__(self, why: str) -> None:
        super().__init__(why)


def is_private(network: str) -> bool:
    """Whether ranks get a private network, given the setting "auto", "private" or "host".

    True for "private" even if the kernel does not allow private networks: the launch then fails.
    """
    assert network in ("auto", "private", "host"), network
    return network == "private" or (network == "auto" and not why_not())


@cache
def why_not() -> str:
    """Why the kernel refuses a private network to processes of this user; "" if it allows it.

    Tested once, in a child process.
    """
    # A fork takes a tenth of the time of a new interpreter, and pytest's header waits for this.
    return _try_in_a_fork() if _threads() == 1 else _try_in_a_new_process()


def _try_in_a_fork() -> str:
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(write, _try().encode())
        finally:
            os._exit(0)
    os.close(write)
    with open(read, errors="replace") as answer:
        output = answer.read()
    _, status = os.waitpid(child, 0)
    return _verdict(output, os.waitstatus_to_exitcode(status))


def _try_in_a_new_process() -> str:
    import subprocess  # imported here, because the child process also loads this file

    tried = subprocess.run(
        [sys.executable, "-I", "-S", __file__],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    return _verdict(tried.stdout, tried.returncode)


def _verdict(output: str, code: int) -> str:
    return output.strip() or (f"the test process ended with exit code {code}" if code else "")


def _try() -> str:
    """Enters a namespace and connects over its loopback device; returns what failed, or ""."""
    try:
        enter()
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), timeout=10).close()
    except OSError as error:
        return str(error)
    return ""


def enter() -> None:
    """Moves this process, and those that it starts, into a new network namespace with loopback up.

    A process without CAP_SYS_ADMIN also enters a new user namespace, which keeps its user and group
    ids and gives it no privileges.  Root does not, because there it could not open other users'
    files.  Must be called before any socket is created, in a process with one thread.  Raises
    NoNamespace if a step fails; the process must then not continue.
    """
    if _threads() != 1:
        raise NoNamespace(f"the process has {_threads()} threads, and must have only one")
    refused = _unshare(_CLONE_NEWNET)
    if refused == errno.EPERM and os.geteuid() != 0:
        _enter_user_namespace()
    elif refused:
        raise NoNamespace(f"unshare refuses a network namespace: {os.strerror(refused)}")
    try:
        _bring_up_loopback()
    except OSError as error:
        raise NoNamespace(f"the loopback device cannot be brought up: {error.strerror}") from error
    if refused:
        _drop_capabilities()


def _enter_user_namespace() -> None:
    user, group = os.geteuid(), os.getegid()
    refused = _unshare(_CLONE_NEWUSER | _CLONE_NEWNET)
    if refused:
        raise NoNamespace(
            f"unshare refuses a user namespace with a network namespace: {os.strerror(refused)}"
        )
    for name, content in (
        ("setgroups", "deny"),  # required before an unprivileged process may write gid_map
        ("uid_map", f"{user} {user} 1"),
        ("gid_map", f"{group} {group} 1"),
    ):
        try:
            with open(f"/proc/self/{name}", "w") as file:
                file.write(content)
        except OSError as error:
            raise NoNamespace(
                f"/proc/self/{name} of a user namespace cannot be written: {error.strerror}"
            ) from error


def _bring_up_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        reply = fcntl.ioctl(any_socket, _SIOCGIFFLAGS, _IFREQ.pack(b"lo", 0))
        name, flags = _IFREQ.unpack(reply)
        if not flags & _IFF_UP:
            fcntl.ioctl(any_socket, _SIOCSIFFLAGS, _IFREQ.pack(name, flags | _IFF_UP))


def _drop_capabilities() -> None:
    """Drops the capabilities that the creator of a user namespace has in it.

    With them, a program could read files that it cannot read outside of the namespace.
    """
    header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.capset(header, bytes(24)):
        reason = os.strerror(ctypes.get_errno())
        raise NoNamespace(f"capset cannot drop the capabilities in a user namespace: {reason}")


def _unshare(flags: int) -> int:
    """Calls unshare(2) with `flags`; returns the error number, 0 for success."""
    libc = ctypes.CDLL(None, use_errno=True)
    return ctypes.get_errno() if libc.unshare(flags) else 0


def _threads() -> int:
    return len(os.listdir("/proc/self/task"))


if __name__ == "__main__":
    if len(sys.argv) == 1:
        print(_try())
        sys.exit()
    try:
        enter()
    except NoNamespace as error:
        sys.exit(
            f"no private network for the ranks: {error}; with --trainsafe-network=host, they use "
            "the machine's network"
        )
    os.execv(sys.argv[1], sys.argv[1:])
