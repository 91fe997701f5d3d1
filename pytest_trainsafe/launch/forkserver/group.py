"""The reaper of a forked group: forks the ranks, hosts their store, and ends all their processes.

The server runs it in a child process for each connection; it uses the protocol that
`supervise/processes.py` describes.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import sys
import traceback
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NoReturn

import msgspec

from pytest_trainsafe.launch.forkserver.fit import misfits
from pytest_trainsafe.launch.forkserver.forked_rank import run_rank
from pytest_trainsafe.launch.resources import namespace
from pytest_trainsafe.launch.supervise import reaper
from pytest_trainsafe.launch.torchrun.elastic import worker_environment
from pytest_trainsafe.launch.torchrun.store import hold_store, listen

#: Seconds within which a client must have sent its request.
_PATIENCE = 60.0

#: Maximum bytes of a request; more than an environment and a search path can have.
_MAX_REQUEST = 2**24


class _RequestError(Exception):
    """A malformed request, which this package never sends; the message says what is wrong."""


class _Request(msgspec.Struct):
    """The fields that a request for ranks must have."""

    task: str
    world_size: Annotated[int, msgspec.Meta(ge=1, le=2**14)]
    environ: dict[str, str]
    sys_path: list[str]
    cwd: str
    threads: bool = False


def serve(
    control: socket.socket, client: int, base: Mapping[str, str], status: Mapping[str, object]
) -> NoReturn:
    """Serves the request of one connection in this process, and exits.

    `control` is the socket of the connection and `client` the process id of its other end.  `base`
    is the environment with which the server started, and `status` is what the server reports about
    itself if the request asks for no ranks.
    """
    code = 70  # EX_SOFTWARE, unless what follows succeeds
    try:
        reaper.prctl(reaper.PR_SET_CHILD_SUBREAPER, 1)
        control.settimeout(_PATIENCE)
        try:
            request = _read(control)
        except _RequestError as error:
            reaper.send(control, {"refused": f"the request cannot be read: {error}"})
            request = None
        if request is not None:
            control.settimeout(None)
            reaper.send(control, {"reaper": os.getpid()})
            _answer(control, client, base, status, request)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stderr.flush()
        # The client waits for this.  When a process ends, the kernel frees its memory before it
        # closes its sockets, and this one has that of the server.
        control.close()
        os._exit(code)


def _read(control: socket.socket) -> dict[str, Any] | None:
    """Receives a request and the two pipes that the client sends with it.

    The first pipe becomes the standard output and standard error of this process.  Returns the
    request; its key "gate" holds the descriptor of the second pipe, on which the ranks wait before
    they begin the program, or -1 without a second pipe.  Returns None if the client closed the
    connection or sent more than one line.  Raises _RequestError for a malformed request.
    """
    content, fds, _, _ = socket.recv_fds(control, 65536, 2)
    if fds:
        os.dup2(fds[0], 1)
        os.dup2(fds[0], 2)
        os.close(fds[0])
    received = bytearray(content)
    while not received.endswith(b"\n"):
        chunk = control.recv(65536)
        if not chunk:
            return None
        received += chunk
        if len(received) > _MAX_REQUEST:
            raise _RequestError(f"it is longer than {_MAX_REQUEST} bytes")
    line, _, rest = bytes(received).partition(b"\n")
    # Data sent after a message with descriptors arrives in a receive of its own.
    if rest or select.select([control], [], [], 0)[0]:
        return None
    try:
        request = json.loads(line)  # not msgspec: environment variables need not be UTF-8
        if not isinstance(request, dict):
            raise _RequestError("it is not a JSON object")
        if "task" in request:
            msgspec.convert(request, _Request)
    except (ValueError, RecursionError, msgspec.ValidationError) as error:
        raise _RequestError(str(error)) from error
    return {**request, "gate": fds[-1] if fds else -1}


def _answer(
    control: socket.socket,
    client: int,
    base: Mapping[str, str],
    status: Mapping[str, object],
    request: dict[str, Any],
) -> None:
    if "task" not in request:
        reaper.send(control, {"status": status})
        return
    reasons = misfits(base, request["environ"], request["sys_path"])
    if reasons:
        reaper.send(control, {"refused": "; ".join(reasons)})
        return
    try:
        alive = [control.fileno(), os.pidfd_open(client)]
    except ProcessLookupError:
        return
    if request["private"]:
        try:
            namespace.enter()
        except namespace.NoNamespace as error:
            reaper.send(control, {"refused": f"no private network for the ranks: {error}"})
            return
    if request.get("threads"):
        children = _fork_process(request, [control], alive[1:])
        os.close(request["gate"])
        reaper.stay()
        reaper.watch(control, alive, children)
        return
    with listen() as listening:
        close = [control, listening]
        children = _fork_ranks(request, listening.getsockname()[1], close, alive[1:])
        os.close(request["gate"])
        reaper.stay()
        store = hold_store(listening)  # starts a thread, so no forks after this
    reaper.watch(control, alive, children)
    del store


def _fork_ranks(
    request: dict[str, Any], port: int, close: list[socket.socket], close_fds: list[int]
) -> dict[int, dict[str, object]]:
    children: dict[int, dict[str, object]] = {}
    for rank, environ in enumerate(_environments(request, port)):
        pid = os.fork()
        if pid:
            children[pid] = {"rank": rank}
            continue
        for each in close:
            each.close()
        for fd in close_fds:
            os.close(fd)
        run_rank(Path(request["task"]), rank, environ, request["cwd"], request["gate"])
    return children


def _fork_process(
    request: dict[str, Any], close: list[socket.socket], close_fds: list[int]
) -> dict[int, dict[str, object]]:
    """Forks the one process of a group whose ranks are threads."""
    pid = os.fork()
    if not pid:
        for each in close:
            each.close()
        for fd in close_fds:
            os.close(fd)
        from pytest_trainsafe.launch.threads.process import run_ranks

        # There is no store at the port, because the ranks meet in memory.
        environs = _environments(request, port=29500)
        run_ranks(Path(request["task"]), environs, request["cwd"], request["gate"])
    return {pid: {}}


def _environments(request: dict[str, Any], port: int) -> list[dict[str, str]]:
    """The environment of each rank, by rank."""
    world, run_id, folder = request["world_size"], uuid.uuid4().hex, Path(request["task"]).parent
    return [
        worker_environment(
            request["environ"],
            rank=rank,
            world_size=world,
            port=port,
            run_id=run_id,
            error_file=str(folder / f"rank{rank}" / "error.json"),
        )
        for rank in range(world)
    ]
