"""The store through which the ranks of a group meet: torchrun's agent store, on loopback alone."""

from __future__ import annotations

import socket
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch._C._distributed_c10d import TCPStore


def listen() -> socket.socket:
    """A socket for a store to listen on: of the loopback device, at a port the system chooses.

    A TCPStore that opens its own socket listens on every address of the machine.
    """
    return socket.create_server(("127.0.0.1", 0), backlog=512)


def hold_store(listening: socket.socket) -> TCPStore:
    """Serve a store on this socket, from a thread of this process, for as long as it is held.

    It lives above the ranks because it must outlive them.
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
