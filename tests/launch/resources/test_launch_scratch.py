"""Temporary folders are removed by a later run if, and only if, nobody uses them any more."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from pytest_trainsafe.launch.resources import scratch
from pytest_trainsafe.launch.resources.leases import Leases

MAKE = """
import os, signal, sys
from pytest_trainsafe.launch.resources import scratch
print(scratch.make("progress", sys.argv[1]).path, flush=True)
{then}
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def below(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(scratch, "SHORT", str(tmp_path / "absent"))
    return tmp_path


def start(below: Path, then: str = "") -> tuple[subprocess.Popen[str], Path]:
    """A process that has made a folder and waits."""
    made = subprocess.Popen(
        [sys.executable, "-c", MAKE.format(then=then), str(below)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert made.stdout is not None
    return made, Path(made.stdout.readline().strip())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_the_folder_of_a_dead_process_is_removed_and_that_of_a_live_one_stays(
    below: Path, number: signal.Signals
) -> None:
    dead, left = start(below)
    alive, used = start(below)
    with dead, alive:
        dead.send_signal(number)
        dead.wait()

        scratch.sweep()

        assert (left.exists(), used.exists()) == (False, True)
        alive.kill()
    scratch.sweep()
    assert list(below.iterdir()) == []


def test_a_folder_stays_while_one_of_its_users_lives(below: Path) -> None:
    first, folder = start(below)
    lock = scratch.hold(folder)
    assert lock is not None
    with first:
        first.kill()
    scratch.sweep()
    assert folder.exists()

    lock.release()
    scratch.sweep()
    assert not folder.exists()


def test_a_process_that_the_owner_forked_does_not_keep_its_folder(below: Path) -> None:
    owner, folder = start(below, then="child = os.fork()\nos.write(1, b'%d\\n' % child)")
    assert owner.stdout is not None
    # Both processes have printed, so the child has let go of what it inherited.
    child = max(int(owner.stdout.readline()) for _ in range(2))
    with owner:
        owner.kill()
        owner.wait()
        scratch.sweep()
        os.kill(child, signal.SIGKILL)
    assert not folder.exists()


def test_only_folders_with_names_of_ours_are_removed(below: Path) -> None:
    (below / "precious").mkdir()
    kept = [
        *("trainsafe-progress-12345678", "pymp-12345678", "trainsafe-mp-1234.used", "trainsafe-x"),
        "precious",
    ]
    for name in kept:
        (below / name).mkdir(exist_ok=True)
    (below / "trainsafe-mp-12345678.used").symlink_to(below / "precious")
    (below / "trainsafe-mp-23456789.used").write_text("a file")

    scratch.sweep()

    assert all((below / name).is_dir() for name in kept)
    assert (below / "trainsafe-mp-12345678.used").is_symlink()
    assert (below / "trainsafe-mp-23456789.used").is_file()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_a_folder_of_another_user_stays(below: Path) -> None:
    folder = below / "trainsafe-mp-12345678.used"
    folder.mkdir()
    os.chown(folder, 65534, 65534)

    scratch.sweep()

    assert folder.is_dir()


def test_a_folder_that_is_removed_while_it_is_made_is_made_again(
    below: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when another run sweeps between the creation and the lock."""
    make, made = tempfile.mkdtemp, []

    def swept(*args: Any, **kwargs: Any) -> str:
        made.append(make(*args, **kwargs))
        if len(made) == 1:
            os.rmdir(made[0])
        return made[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", swept)

    found = scratch.make("progress")

    assert str(found.path) == made[1]
    assert found.path.stat().st_mode & 0o777 == 0o700
    found.remove()
    assert not found.path.exists()


HOLD = """
import os, signal, sys, threading
from pathlib import Path
from pytest_trainsafe.launch.resources.leases import Leases
with Leases(2, directory=Path(sys.argv[1])).take(1):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_lease_files_of_dead_processes_are_removed_and_those_of_live_ones_stay(
    below: Path,
) -> None:
    holders = [
        subprocess.Popen(
            [sys.executable, "-c", HOLD, str(below)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for _ in range(2)
    ]
    with holders[0], holders[1]:
        for each in holders:
            assert each.stdout is not None
            assert each.stdout.readline() == b"held\n"
        holders[0].kill()
        holders[0].wait()
        (below / ".00000009-1-1").touch()  # of a process that was killed as it joined
        (below / "other").touch()

        Leases(2, directory=below).forget_dead()

        (left,) = below.glob("0*")
        assert f"-{holders[1].pid}-" in left.name
        assert not (below / ".00000009-1-1").exists()
        assert (below / "other").exists()
        holders[1].kill()
