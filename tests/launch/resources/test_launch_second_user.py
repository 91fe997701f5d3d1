"""Another user of the machine can neither enter our folders nor use the fork server.

For the stores of running groups, see test_launch_network.py.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.launch import WarmServer
from pytest_trainsafe.launch.forkserver import start
from pytest_trainsafe.launch.resources import leases, scratch
from pytest_trainsafe.record.reads.notes import Notes
from pytest_trainsafe.runs.cached.cache import ReferenceCache
from pytest_trainsafe.runs.cached.fingerprint import Key
from pytest_trainsafe.runs.session import Session
from tests.support.launch.second_user import NOBODY, as_nobody, as_root

pytestmark = [as_root, pytest.mark.usefixtures("open_umask")]


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that every user can enter, as /tmp; pytest's own folders are closed."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder)


def leased(public: Path) -> Path:
    return leases.user_directory({"XDG_RUNTIME_DIR": str(public)})


def recorded(public: Path) -> Path:
    session = Session(Settings(), public)
    session.close()
    return session.folders.new("run")


def cached(public: Path) -> Path:
    cache = ReferenceCache(public / "cache", 2**20)

    def fails(folder: Path) -> Notes:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        cache.get(
            Key("0" * 32, {}),
            fails,
            environ={},
            current=lambda: None,
            own=public / "own",
        )
    cache.close()
    return cache.directory


FOLDERS: dict[str, Callable[[Path], Path]] = {
    "temporary folder": lambda public: scratch.make("progress", public).path,
    "lease files": leased,
    "traces of a Run": recorded,
    "reference cache": cached,
}


@pytest.mark.parametrize("what", FOLDERS)
def test_another_user_can_neither_list_nor_change_a_folder(what: str, public: Path) -> None:
    folder = FOLDERS[what](public)
    (folder / "theirs").write_text("tensors")
    (public / "open").mkdir()

    def read(path: Path) -> str:
        try:
            return f"read {os.listdir(path) if path.is_dir() else path.read_text()}"
        except PermissionError:
            return "refused"

    def write(path: Path) -> str:
        try:
            path.write_text("x")
        except PermissionError:
            return "refused"
        return "written"

    attempts = {
        "list": lambda: read(folder),
        "read": lambda: read(folder / "theirs"),
        "write": lambda: write(folder / "theirs"),
        "add": lambda: write(folder / "another"),
    }
    for name, act in attempts.items():
        assert as_nobody(act) == "refused", name
    # The other user can do so elsewhere: it is the folder that refuses.
    assert as_nobody(lambda: write(public / "open" / "x") + read(public / "open")) == (
        "writtenread ['x']"
    )


def test_another_user_can_neither_use_nor_disturb_the_fork_server(public: Path) -> None:
    server = WarmServer.start(public)
    try:
        keeper = server._keeper.pid
        pids = [keeper, int(start.status(server.address)["server"])]

        def use() -> str:
            start.connect(server.address)
            return "connected"

        def disturb() -> str:
            done = []
            for pid in pids:
                for act in (
                    lambda pid=pid: os.kill(pid, signal.SIGTERM),
                    lambda pid=pid: os.close(os.open(f"/proc/{pid}/mem", os.O_RDWR)),
                    lambda pid=pid: os.listdir(f"/proc/{pid}/fd"),
                ):
                    try:
                        act()
                    except PermissionError:
                        done.append("refused")
            return " ".join(done)

        assert as_nobody(use).startswith("PermissionError: ")
        assert as_nobody(disturb) == " ".join(["refused"] * 6)
        start.connect(server.address).close()  # it still serves its own user
    finally:
        server.close()


def test_a_fork_server_of_another_user_is_not_used(public: Path) -> None:
    folder = public / "trainsafe-warm-12345678.used"
    folder.mkdir(mode=0o700)
    os.chown(folder, NOBODY, NOBODY)

    with pytest.raises(PermissionError, match="must belong to this user"):
        start.connect(str(folder))
