"""Ranks meet in a private network, or on loopback, where no data of other users runs as code.

One group runs for each launcher and network; the tests inspect it from outside, as root and as
another user, and then let it continue.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import pickle
import re
import select
import socket
import struct
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

from pytest_trainsafe.launch import (
    GroupFailure,
    GroupResult,
    Launcher,
    Task,
    TorchrunLauncher,
    WarmLauncher,
    WarmServer,
    raise_for_failure,
)
from pytest_trainsafe.launch.resources import namespace
from pytest_trainsafe.launch.torchrun.launcher import environment
from tests.support.launch import network_programs
from tests.support.launch.network_programs import KEY, VALUE
from tests.support.launch.second_user import NOBODY, as_nobody, as_root

#: Seconds after which an agent of torch's elastic rendezvous has read its state again.
AGENT_POLLS = 1.5


def needs_namespaces() -> None:
    if namespace.why_not():
        pytest.skip(f"no private network here: {namespace.why_not()}")


class Running:
    """A group that pauses halfway; `facts` are what its ranks wrote."""

    def __init__(self, launcher: Launcher, folder: Path) -> None:
        self.folder = folder
        self.temporary = folder / "temporary"
        self.temporary.mkdir()
        self.result: GroupResult | None = None
        self._launcher = launcher
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        self.facts = [json.loads(poll(folder / f"ready-{rank}", self._thread)) for rank in (0, 1)]
        self.port: int = self.facts[0]["port"]

    def _run(self) -> None:
        task = Task.of(network_programs.meet_twice, str(self.folder), world_size=2)
        environ = {**os.environ, "TMPDIR": str(self.temporary), "GLOO_SOCKET_IFNAME": "eth0"}
        self.result = self._launcher.run(
            task, timeout=120, workdir=self.folder / "groups", environ=environ
        )

    def finish(self) -> GroupResult:
        """Let the ranks continue, if they still wait, and wait for the end of the group."""
        (self.folder / "go").touch()
        self._thread.join()
        assert self.result is not None
        return self.result

    def pids(self) -> set[int]:
        """The ranks, and the process that holds their store."""
        return {fact[name] for fact in self.facts for name in ("pid", "above")}


def poll(path: Path, while_alive: threading.Thread) -> bytes:
    """The content of a file that another process will write."""
    while True:
        alive = while_alive.is_alive()
        with contextlib.suppress(FileNotFoundError):
            return path.read_bytes()
        assert alive, f"the group ended without {path.name}"
        time.sleep(0.01)


@pytest.fixture(scope="module", params=["warm", "torchrun"])
def start(
    request: pytest.FixtureRequest,
    warm_server: WarmServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str], Running]:
    """Start a group in the given network, with each launcher in turn."""

    def begin(network: str) -> Running:
        launcher: Launcher = TorchrunLauncher(network=network)
        if request.param == "warm":
            launcher = WarmLauncher(warm_server.address, network=network)
        return Running(launcher, tmp_path_factory.mktemp(f"{request.param}-{network}"))

    return begin


@pytest.fixture(scope="module")
def private(start: Callable[[str], Running]) -> Iterator[Running]:
    needs_namespaces()
    running = start("private")
    yield running
    running.finish()


@pytest.fixture(scope="module")
def shared(start: Callable[[str], Running]) -> Iterator[Running]:
    running = start("host")
    yield running
    running.finish()


def test_a_private_network_has_only_the_loopback_device(private: Running) -> None:
    for pid in private.pids():
        assert os.readlink(f"/proc/{pid}/ns/net") != os.readlink("/proc/self/ns/net")
        devices = Path(f"/proc/{pid}/net/dev").read_text().splitlines()[2:]
        assert [line.partition(":")[0].strip() for line in devices] == ["lo"]


def test_a_group_in_a_private_network_listens_only_on_loopback(private: Running) -> None:
    assert_only_loopback(private)


def test_a_group_in_the_host_network_listens_only_on_loopback(shared: Running) -> None:
    assert_only_loopback(shared)


def assert_only_loopback(running: Running) -> None:
    found = {address for pid in running.pids() for address in listening(pid)}
    assert running.port in {port for _, port in found}
    assert len(found) >= 3  # the store, and each rank for the other
    assert [address for address, _ in found if not address.is_loopback] == []


@as_root
def test_another_user_cannot_reach_a_private_store(private: Running) -> None:
    pid = private.facts[0]["pid"]

    def attack() -> str:
        with contextlib.suppress(PermissionError):
            os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
            return "opened the namespace of a rank"
        try:
            socket.create_connection(("127.0.0.1", private.port), timeout=5).close()
        except ConnectionRefusedError:
            return "refused"
        return join(private.port)  # a store of another group

    assert "written" not in as_nobody(attack)
    result = private.finish()
    raise_for_failure(result)
    assert [(private.folder / f"found-{rank}").read_bytes() for rank in (0, 1)] == [VALUE, VALUE]


@as_root
def test_values_that_another_user_writes_to_a_store_are_never_executed(
    shared: Running, tmp_path: Path
) -> None:
    """On loopback another user can join the store, but what they write is never unpickled."""
    marker = tmp_path / "was-run"
    poison = pickle.dumps(Payload(str(marker)))
    facts = shared.facts[0]
    ports = sorted({port for _, port in listening(facts["above"])})
    assert shared.port in ports
    over_read, over_write = os.pipe()
    done_read, done_write = os.pipe()

    def attack() -> str:
        os.close(over_write)
        return flood(ports, facts["run"], poison, done_write, over_read)

    def go_on() -> None:
        os.close(done_write)
        os.read(done_read, 1)  # or the end of the attacker
        shared.finish()
        os.close(over_write)

    keys = as_nobody(attack, go_on)
    os.close(over_read)
    os.close(done_read)
    assert not marker.exists()
    assert KEY in keys
    found = {(shared.folder / f"found-{rank}").read_bytes() for rank in (0, 1)}
    assert found == {poison}  # the attack reached the ranks


def test_a_group_leaves_no_temporary_files(private: Running) -> None:
    raise_for_failure(private.finish())
    assert list(private.temporary.iterdir()) == []


@as_root
def test_a_user_other_than_root_gets_a_private_network_without_capabilities(tmp_path: Path) -> None:
    needs_namespaces()
    closed = tmp_path / "closed"
    closed.touch()
    os.chown(closed, NOBODY, NOBODY)
    closed.chmod(0)
    folder = os.open(tmp_path, os.O_RDONLY)

    def enter() -> str:
        try:
            namespace.enter()
        except namespace.NoNamespace as error:
            return f"cannot: {error}"
        status = Path("/proc/self/status").read_text()
        found = dict(re.findall(r"^(CapEff|CapPrm):\s*(\w+)$", status, re.MULTILINE))
        with contextlib.suppress(PermissionError):
            os.open("closed", os.O_RDONLY, dir_fd=folder)
            return "opened a file that is closed to its owner"
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname()).close()
        try:
            network_programs.connect_outside()
        except OSError as error:
            return f"{os.getuid()} {os.getgid()} {sorted({*found.values()})} {error.strerror}"
        return "connected"

    answer = as_nobody(enter)
    os.close(folder)
    if answer.startswith("cannot"):
        pytest.skip(f"no user namespaces here: {answer}")
    assert answer == f"{NOBODY} {NOBODY} ['{0:016x}'] Network is unreachable"


def test_a_process_with_several_threads_cannot_enter_a_private_network() -> None:
    waiting = threading.Event()
    thread = threading.Thread(target=waiting.wait)
    thread.start()
    with pytest.raises(namespace.NoNamespace, match=r"the process has \d+ threads"):
        namespace.enter()
    waiting.set()
    thread.join()


def test_a_network_error_in_a_private_network_names_the_network_option(
    warm_server: WarmServer, tmp_path: Path
) -> None:
    needs_namespaces()
    launcher = WarmLauncher(warm_server.address, network="private")
    messages = []
    for program in (network_programs.connect_outside, network_programs.raise_something_else):
        result = launcher.run(Task.of(program, world_size=1), timeout=60, workdir=tmp_path)
        with pytest.raises(GroupFailure) as caught:
            raise_for_failure(result)
        messages.append(str(caught.value))
    assert "Network is unreachable" in messages[0]
    assert "run with --trainsafe-network host" in messages[0]
    assert "--trainsafe-network" not in messages[1]


def test_gloo_uses_loopback_and_nccl_uses_the_interface_that_the_task_sets() -> None:
    inherited = {"GLOO_SOCKET_IFNAME": "eth0", "NCCL_SOCKET_IFNAME": "ib0"}
    task = Task.of("sys:getrecursionlimit", world_size=1, env={"NCCL_SOCKET_IFNAME": "eth1"})
    found = environment(task, inherited)
    assert (found["GLOO_SOCKET_IFNAME"], found["NCCL_SOCKET_IFNAME"]) == ("lo", "eth1")


class Payload:
    """Makes a folder when it is unpickled."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Callable[..., None], tuple[str]]:
        return os.mkdir, (self.folder,)


def join(port: int) -> str:
    """Join a store, and return the value of KEY or the name of the error."""
    try:
        store = TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=2))
        return f"{KEY} is {store.get(KEY)!r}"
    except Exception as error:
        return type(error).__name__


def flood(ports: list[int], run: str, poison: bytes, done: int, over: int) -> str:
    """Replace every value of some stores, again and again, also those that torch will read.

    Writes to `done` once an agent would have seen them, and ends with a store or when `over` is
    closed.
    """
    os.set_blocking(done, False)
    began = time.monotonic()
    seconds = timedelta(seconds=5)
    stores = [TCPStore("127.0.0.1", port, is_master=False, timeout=seconds) for port in ports]
    # the key and the encoding of the state of torch's elastic rendezvous
    state = f"torch.rendezvous.{run}"
    seen: dict[str, None] = {}
    with contextlib.suppress(dist.DistError):
        while not select.select([over], [], [], 0)[0]:
            for store in stores:
                for key in ["torchelastic/role_info/0", "MASTER_ADDR", *store.list_keys()]:
                    seen[key] = None
                    if key != state:
                        store.set(key, poison)  # type: ignore[arg-type]  # bytes, too
                store.set(state, b64encode(poison))  # type: ignore[arg-type]
            if time.monotonic() > began + AGENT_POLLS:
                with contextlib.suppress(BlockingIOError):
                    os.write(done, b".")
    return " ".join(seen)


def listening(pid: int) -> Iterator[tuple[ipaddress.IPv4Address | ipaddress.IPv6Address, int]]:
    """The addresses and ports on which a process listens, as its own network namespace says."""
    inodes = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            inodes |= set(re.findall(r"socket:\[(\d+)\]", os.readlink(f"/proc/{pid}/fd/{fd}")))
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                yield address(fields[1])


def address(text: str) -> tuple[ipaddress.IPv4Address | ipaddress.IPv6Address, int]:
    """ "0100007F:1F90" is 127.0.0.1 and 8080: words of four bytes, in the machine's order."""
    words, port = text.split(":")
    raw = b"".join(struct.pack("=I", int(words[i : i + 8], 16)) for i in range(0, len(words), 8))
    found = ipaddress.ip_address(raw)
    mapped = getattr(found, "ipv4_mapped", None)
    return mapped or found, int(port, 16)
