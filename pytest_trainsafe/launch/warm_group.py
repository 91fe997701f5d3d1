"""The guard of a forked group: forks the ranks, holds their store, and lets nothing outlive them.

Called by `warm_server` in a child of its own for each connection; speaks `processes`' lines.
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
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

from pytest_trainsafe.launch import guard
from pytest_trainsafe.launch.elastic import worker_environment
from pytest_trainsafe.launch.warm_fit import misfits
from pytest_trainsafe.launch.warm_rank import run_rank

#: Seconds within which whoever connects must have said what it wants.
_PATIENCE = 60.0


def serve(
    control: socket.socket, client: int, base: Mapping[str, str], status: Mapping[str, object]
) -> NoReturn:
    """Serve the request of one connection in this process, and end it."""
    code = 70  # EX_SOFTWARE: what follows failed
    try:
        guard.prctl(guard.PR_SET_CHILD_SUBREAPER, 1)
        control.settimeout(_PATIENCE)
        request = _read(control)
        if request is not None:
            control.settimeout(None)
            guard.tell(control, {"guard": os.getpid()})
            _answer(control, client, base, status, request)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stderr.flush()
        os._exit(code)


def _read(control: socket.socket) -> dict[str, Any] | None:
    """The request, with its pipe as our output and its `gate`; None if it was taken back."""
    content, fds, _, _ = socket.recv_fds(control, 65536, 2)
    if fds:
        os.dup2(fds[0], 1)
        os.dup2(fds[0], 2)
        os.close(fds[0])
    while b"\n" not in content:
        chunk = control.recv(65536)
        if not chunk:
            return None
        content += chunk
    line, _, rest = content.partition(b"\n")
    # What is sent after a message with descriptors is received by itself.
    taken_back = bool(rest) or bool(select.select([control], [], [], 0)[0])
    return None if taken_back else {**json.loads(line), "gate": fds[-1] if fds else -1}


def _answer(
    control: socket.socket,
    client: int,
    base: Mapping[str, str],
    status: Mapping[str, object],
    request: dict[str, Any],
) -> None:
    if "task" not in request:
        guard.tell(control, {"status": status})
        return
    reasons = misfits(base, request["environ"], request["sys_path"])
    if reasons:
        guard.tell(control, {"refused": "; ".join(reasons)})
        return
    try:
        alive = [control.fileno(), os.pidfd_open(client)]
    except ProcessLookupError:
        return
    with socket.create_server(("127.0.0.1", 0), backlog=512) as listening:
        close = [control, listening]
        children = _fork_ranks(request, listening.getsockname()[1], close, alive[1:])
        os.close(request["gate"])
        guard.stay()
        store = _hold_store(listening)
    guard.watch(control, alive, children)
    del store


def _fork_ranks(
    request: dict[str, Any], port: int, close: list[socket.socket], close_fds: list[int]
) -> dict[int, dict[str, object]]:
    world, run_id = request["world_size"], uuid.uuid4().hex
    children: dict[int, dict[str, object]] = {}
    for rank in range(world):
        pid = os.fork()
        if pid:
            children[pid] = {"rank": rank}
            continue
        for each in close:
            each.close()
        for fd in close_fds:
            os.close(fd)
        task_file = Path(request["task"])
        environ = worker_environment(
            request["environ"],
            rank=rank,
            world_size=world,
            port=port,
            run_id=run_id,
            error_file=str(task_file.parent / f"rank{rank}" / "error.json"),
        )
        run_rank(task_file, rank, environ, request["cwd"], request["gate"])
    return children


def _hold_store(listening: socket.socket) -> object:
    """torchrun's agent store, on a port of the loopback device that nobody can take.

    It lives here because it must outlive the ranks.  It has a thread: nothing is forked after.
    """
    from torch._C._distributed_c10d import TCPStore

    port = listening.getsockname()[1]
    return TCPStore(
        "127.0.0.1",
        port,
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(seconds=60),
        master_listen_fd=listening.detach(),
    )
