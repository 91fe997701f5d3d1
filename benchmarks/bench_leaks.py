"""Checks that many groups of ranks under pytest-xdist leave nothing behind and do not get slower.

Runs 200 groups of 2 ranks in a pytest run with `-n 2`. After the run it counts processes that are
left (a listening port cannot outlive its process), temporary files and new shared memory. After
each group it counts the open files of the worker and of the fork server, which must not be more at
the end than at the start. The target for the time of a group is an increase of at most 10 % from
the first 20 groups to the last 20.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from _measure import ROOT, finish, machine, median, quick, show

TESTS = """
import functools
import json
import os
import pathlib
import time
import pytest

def work():
    import torch
    import torch.distributed as dist
    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(4))
    dist.destroy_process_group()
    return dist.__name__

@functools.cache
def server():
    "The fork server: the one whose parent is the keeper, as its ranks' is not."
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit() and b"warm_server" in read(entry / "cmdline"):
            parent = read(entry / "stat").rpartition(b")")[2].split()[1].decode()
            keeper = b"warm_keeper" in read(pathlib.Path("/proc", parent, "cmdline"))
            if keeper and os.environ["TMPDIR"].encode() in read(entry / "environ"):
                return entry.name
    raise AssertionError("there is no fork server")

def read(path):
    try:
        return path.read_bytes()
    except OSError:
        return b""

@pytest.mark.parametrize("number", range({groups}))
def test_group(torchrun_group, number):
    began = time.monotonic()
    assert len(torchrun_group.run(work, world_size=2)) == 2
    ended = time.monotonic()
    files = [len(os.listdir(f"/proc/{{pid}}/fd")) for pid in ("self", server())]
    noted = [ended, ended - began, *files]
    with open(f"noted-{{os.environ['PYTEST_XDIST_WORKER']}}", "a") as file:
        file.write(json.dumps(noted) + "\\n")
"""


def main() -> None:
    groups = 40 if quick(__doc__) else 200
    facts = machine()
    shared = {entry.name for entry in Path("/dev/shm").iterdir()}
    with tempfile.TemporaryDirectory(prefix="trainsafe-leaks-") as temporary:
        folder = Path(temporary)
        noted = run(folder, groups)
        left = {
            "processes": lasting(folder),
            "shared memory": sorted({p.name for p in Path("/dev/shm").iterdir()} - shared),
            "temporary files": sorted(str(p) for p in (folder / "tmp").glob("*") if not torchs(p)),
        }
    ends = min(20, groups // 4)
    files = {f"worker {name}": least(each, 2, ends // 2) for name, each in noted.items()} | {
        "the fork server": least(in_order(noted), 3, ends)
    }
    seconds = [took for _, took, *_ in in_order(noted)]
    # The first group of each worker starts the fork server, or waits for it.
    first, last = median(seconds[2 : 2 + ends]), median(seconds[-ends:])
    rows: list[Sequence[object]] = [
        *([f"{what} left", len(found), " ".join(found[:3])] for what, found in left.items()),
        *([f"open files of {who}", f"{a:.0f}", f"then {b:.0f}"] for who, (a, b) in files.items()),
        [f"seconds, first {ends} groups", f"{first:.3f}", ""],
        [f"seconds, last {ends} groups", f"{last:.3f}", f"{last / first:.2f} times"],
    ]
    show(f"{groups} groups of 2 ranks under -n 2", ["", "", ""], rows)
    figures = {
        "groups": groups,
        "left": left,
        "open_files": files,
        "first_seconds": first,
        "last_seconds": last,
        "slower": last / first,
    }
    finish("leaks", facts, figures)
    if any(left.values()) or any(b > a for a, b in files.values()):
        raise SystemExit("something was left behind")


Noted = list[list[float]]


def in_order(noted: dict[str, Noted]) -> Noted:
    """The notes of all workers, sorted by time."""
    return sorted(one for each in noted.values() for one in each)


def least(noted: Noted, column: int, ends: int) -> tuple[float, float]:
    """The minima of a column at the start and at the end; a starting or ending group adds some."""
    values = [one[column] for one in noted]
    return min(values[1 : 1 + ends]), min(values[-ends:])


def run(folder: Path, groups: int) -> dict[str, Noted]:
    """Run the groups; returns each worker's notes: the time, the seconds, and the open files."""
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "test_groups.py").write_text(TESTS.format(groups=groups))
    runtime, own = folder / "runtime", folder / "tmp"
    runtime.mkdir(mode=0o700)  # a separate folder of leases
    own.mkdir()
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH", ""), str(ROOT)]))
    env = os.environ | {"XDG_RUNTIME_DIR": str(runtime), "PYTHONPATH": path, "TMPDIR": str(own)}
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "no:hypothesispytest"]
    done = subprocess.run(
        [*command, f"--basetemp={folder / 'base'}"],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"the groups failed, so nothing was measured:\n{done.stdout}")
    return {
        file.name.removeprefix("noted-"): [
            json.loads(line) for line in file.read_text().splitlines()
        ]
        for file in sorted(folder.glob("noted-*"))
    }


def torchs(path: Path) -> bool:
    """Whether a path belongs to torch's compiler, which keeps one folder for each user."""
    return path.name.startswith("torchinductor_")


def lasting(folder: Path) -> list[str]:
    """The processes that are left after up to 10 seconds."""
    until = time.monotonic() + 10
    while (found := processes(folder)) and time.monotonic() < until:
        time.sleep(0.1)
    return found


def processes(folder: Path) -> list[str]:
    """The processes whose environment names the folder: pytest, its servers, their ranks."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if str(folder).encode() in (entry / "environ").read_bytes():
                    found.append(entry.name)
            except OSError:  # gone meanwhile, or not ours
                continue
    return found


if __name__ == "__main__":
    main()
