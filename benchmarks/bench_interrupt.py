"""Measures how fast Ctrl-C on a terminal ends a run, and whether the run leaves anything.

Starts pytest on a pseudo-terminal, types Ctrl-C at a random moment, and measures the time until
pytest has ended: for both launchers, without pytest-xdist and with `-n 2`. The moments are drawn
between the start of pytest and 20 seconds later, when the ranks of many Points have trained. After
each run it looks for processes of the run, new shared memory and temporary folders. The target is
that pytest obeys each Ctrl-C within 5 seconds on a quiet machine, and that nothing is left.

    python benchmarks/bench_interrupt.py [--quick] [--count 5] [--seed 0] [--latest 20]
"""

from __future__ import annotations

import argparse
import os
import pty
import random
import select
import signal
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from _measure import ROOT, finish, machine, show

#: The target, the most that is waited for, and the seconds in which processes may end afterwards.
TARGET, LIMIT, AFTER = 5.0, 60.0, 2.0

TESTS = """
import pytest
from pytest_trainsafe import assert_trainsafe
from pytest_trainsafe.reference_models import gpt

@pytest.mark.trainsafe(gpt.train, tp=[1, 2], cp=[1, 2], dp=[1, 2], heads=[4, 8, 16, 32])
def test_gpt(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)
"""

#: Marks the processes of a run.
MARK = "TRAINSAFE_BENCH_INTERRUPT"

LAUNCHERS = ("warm", "torchrun")
WORKERS = ((), ("-n", "2"))


@dataclass(frozen=True)
class Trial:
    """One interrupted run; `seconds` is None if pytest did not end, `log` is what it printed."""

    name: str
    moment: float
    seconds: float | None
    load: float
    left: tuple[str, ...]
    log: str


def main() -> int:
    """Run all trials, print a table, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one interrupt of each kind")
    parser.add_argument("--count", type=int, default=5, help="interrupts of each kind")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random moments")
    parser.add_argument("--latest", type=float, default=20.0, help="seconds of the latest moment")
    parser.add_argument("--show", action="store_true", help="print the output of slow runs")
    given = parser.parse_args()
    print(machine())
    draw = random.Random(given.seed)
    kinds = [(launcher, options) for launcher in LAUNCHERS for options in WORKERS]
    trials = []
    for _ in range(1 if given.quick else given.count):
        for launcher, options in kinds:
            trial = interrupted(launcher, options, draw.uniform(0.2, given.latest))
            trials.append(trial)
            took = "not obeyed" if trial.seconds is None else f"{trial.seconds:.1f} s"
            print(
                f"{trial.name}: Ctrl-C after {trial.moment:.1f} s, {took}, load {trial.load:.1f}"
                f"{', left: ' if trial.left else ''}{', '.join(trial.left)}",
                flush=True,
            )
            if given.show and (trial.seconds is None or trial.seconds > TARGET):
                print(trial.log)
    rows, figures = [], {}
    for name in dict.fromkeys(trial.name for trial in trials):
        own = [trial for trial in trials if trial.name == name]
        seconds = [trial.seconds for trial in own if trial.seconds is not None]
        figures[name] = {
            "interrupts": len(own),
            "obeyed": len(seconds),
            "median": round(statistics.median(seconds), 1) if seconds else None,
            "max": round(max(seconds), 1) if seconds else None,
            "left": sum(bool(trial.left) for trial in own),
            "load": round(statistics.median(trial.load for trial in own), 1),
        }
        rows.append([name, *figures[name].values()])
    columns = ["launcher", "interrupts", "obeyed", "median s", "max s", "runs that left", "load"]
    show(f"Ctrl-C on a terminal (target: {TARGET:g} s on a quiet machine)", columns, rows)
    finish("interrupt", machine(), figures)
    late = any(trial.seconds is None or trial.seconds > TARGET or trial.left for trial in trials)
    return int(late)


def interrupted(launcher: str, options: tuple[str, ...], moment: float) -> Trial:
    """Start a run, type Ctrl-C after `moment` seconds, and wait until it ends."""
    name = f"{launcher} {' '.join(options) or 'alone'}"
    shared = set(os.listdir("/dev/shm"))
    # Not pytest's own folder: a path for sockets must be short.
    with tempfile.TemporaryDirectory(prefix="i", dir="/tmp") as folder:
        temporary = Path(folder, "tmp")
        temporary.mkdir()
        Path(folder, "test_gpt.py").write_text(TESTS, encoding="utf-8")
        Path(folder, "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
        command = [
            *(sys.executable, "-m", "pytest", "-p", "no:hypothesispytest", "-p", "no:syrupy"),
            *("--trainsafe-launcher", launcher, *options),
        ]
        mark = f"{MARK}={folder}"
        pid, terminal = pty.fork()
        if pid == 0:
            os.chdir(folder)
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell's background job ignores it
            os.environ.update({"TMPDIR": str(temporary), MARK: folder, "PYTHONPATH": str(ROOT)})
            os.environ.pop("XDG_RUNTIME_DIR", None)
            os.execv(command[0], command)
        log = bytearray()
        ended = os.pidfd_open(pid)
        _read(terminal, ended, log, moment)
        load = os.getloadavg()[0]
        began = time.monotonic()
        os.write(terminal, b"\x03")
        obeyed = _read(terminal, ended, log, LIMIT)
        seconds = time.monotonic() - began
        if not obeyed:
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(terminal)
        os.close(ended)
        left = _left(mark, temporary, shared)
    return Trial(
        name, moment, seconds if obeyed else None, load, left, log.decode(errors="replace")
    )


def _read(terminal: int, ended: int, log: bytearray, seconds: float) -> bool:
    """Reads what the run prints until it has ended, or for some seconds; returns whether it has."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        ready, _, _ = select.select([terminal, ended], [], [], left)
        if terminal in ready:
            try:
                log += os.read(terminal, 65536)
                continue
            except OSError:  # every process of the run has closed the terminal
                terminal = ended
        if ended in ready:
            return True
    return False


def _left(mark: str, temporary: Path, shared: set[str]) -> tuple[str, ...]:
    """Names what a run has left: processes after some seconds, shared memory, and folders."""
    until = time.monotonic() + AFTER
    while (processes := _processes(mark)) and time.monotonic() < until:
        time.sleep(0.05)
    leases = temporary / f"pytest-trainsafe-{os.geteuid()}"
    names = [*temporary.glob("trainsafe-*"), *temporary.glob("pymp-*"), *leases.glob("[!g]*")]
    memory = [f"/dev/shm/{name}" for name in set(os.listdir("/dev/shm")) - shared if _ours(name)]
    return (*processes, *memory, *(path.name for path in names))


def _ours(name: str) -> bool:
    """Whether shared memory belongs to no process that lives: other work may run on the machine."""
    pids = [word for word in name.replace("-", "_").split("_") if word.isdecimal()]
    return not any(os.path.exists(f"/proc/{pid}") for pid in pids)


def _processes(mark: str) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and entry.name != str(os.getpid()):
            try:
                if mark.encode() in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(f"{entry.name} {(entry / 'comm').read_text().strip()}")
            except OSError:
                continue
    return found


if __name__ == "__main__":
    sys.exit(main())
