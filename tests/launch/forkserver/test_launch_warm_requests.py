"""The fork server refuses a request that it cannot read, and serves the next one."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator

import pytest

from pytest_trainsafe.launch import WarmServer
from pytest_trainsafe.launch.forkserver import group as warm_group
from pytest_trainsafe.launch.forkserver.start import connect, status

pytestmark = pytest.mark.usefixtures("never_hangs")


def request_bytes(**changes: object) -> bytes:
    """A request for ranks as the warm launcher makes it, with `changes`."""
    request = {"task": "x", "world_size": 1, "environ": {}, "sys_path": [], "cwd": "/"}
    return json.dumps({**request, **changes}).encode() + b"\n"


REQUESTS = {
    "null": b"null\n",
    "a list": b"[]\n",
    "garbage": b"\xff\xfe{]\n",
    "deep": b"[" * 200_000 + b"\n",
    "no world": b'{"task": "x"}\n',
    "a world of -1": request_bytes(world_size=-1),
    "a world of 10**9": request_bytes(world_size=10**9),
    "an environment of numbers": request_bytes(environ={"A": 1}),
    "a task that is a number": request_bytes(task=7),
}


@pytest.mark.parametrize("what", REQUESTS)
def test_a_request_that_cannot_be_read_is_refused(warm_server: WarmServer, what: str) -> None:
    with connect(warm_server.address) as connection, connection.makefile("r") as lines:
        connection.sendall(REQUESTS[what])
        replies = [json.loads(line) for line in lines]
    assert [set(reply) for reply in replies] == [{"refused"}]
    assert "the request cannot be read" in replies[0]["refused"]
    assert status(warm_server.address)["server"] == warm_server_pid(warm_server)


def test_an_endless_request_is_refused_at_a_size_limit(warm_server: WarmServer) -> None:
    with connect(warm_server.address) as connection, connection.makefile("r") as lines:
        sent = 0
        try:
            while sent <= 2 * warm_group._MAX_REQUEST:
                sent += connection.send(b"x" * 65536)
        except OSError:  # the server closed the connection
            pass
        reply = lines.readline()
    assert "is longer than" in reply
    assert sent <= 2 * warm_group._MAX_REQUEST


@pytest.mark.parametrize(
    "datagram", [b"null", b"{}", b"[1, null]", b"\xff", b"[" * 30_000, b"", b'"torch"', b"7"]
)
def test_a_datagram_that_is_no_list_of_module_names_is_ignored(
    warm_server: WarmServer, datagram: bytes
) -> None:
    before = status(warm_server.address)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        folder = os.open(warm_server.address, os.O_PATH)
        sender.sendto(datagram, f"/proc/self/fd/{folder}/learn")
        os.close(folder)
    assert status(warm_server.address) == before


def warm_server_pid(server: WarmServer) -> int:
    """The process of the server, once it serves."""
    return int(status(server.address)["server"])


@pytest.fixture(autouse=True)
def _server_survives(warm_server: WarmServer) -> Iterator[None]:
    before = warm_server_pid(warm_server)
    yield
    assert warm_server_pid(warm_server) == before
