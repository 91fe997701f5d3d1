"""The TCPStore through which the ranks of a group meet, on the loopback device only."""

from __future__ import annotations

import socket
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]


def listen() -> socket.socket:
    """Opens a listening socket for a store, on loopback and at a port that the system chooses.

    A TCPStore that opened its own socket would listen on every address of the machine.
    """
    return socket.create_server(("127.0.0.1", 0), backlog=512)


def hold_store(listening: socket.socket) -> TCPStore:
    """Serves a store on this socket, in a thread of this process, while the result is referenced.

    The store is in a parent process of the ranks, because it must outlive them.
    """
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    port = listening.getsockname()[1]
    return TCPStore(
        "127.0.0.1",
        port,
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(seconds=60),
        master_listen_fd=listening.detach(),
    )
