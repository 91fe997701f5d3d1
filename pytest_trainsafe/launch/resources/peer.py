"""The process at the other end of a local socket."""

from __future__ import annotations

import socket
import struct


def peer(connection: socket.socket) -> tuple[int, int]:
    """The process id and user id of the process that made or accepted the connection."""
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _ = struct.unpack("3i", found)
    return pid, uid
