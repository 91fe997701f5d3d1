"""Measures an empty program in a group of ranks, started in three ways.

"warm" forks the ranks, "torchrun" is this plugin's torchrun launcher, and "plain" is torchrun
itself.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import programs
from _measure import finish, machine, median, quick, ratios, show

from pytest_trainsafe.launch import (
    Launcher,
    Task,
    TorchrunLauncher,
    WarmLauncher,
    WarmServer,
    raise_for_failure,
)

TIMEOUT = 300.0


def main() -> None:
    rounds = 2 if quick(__doc__) else 7
    facts = machine()
    rows, figures = [], []
    server = WarmServer.start()
    launchers: dict[str, Launcher] = {
        "warm": WarmLauncher(server.address, warn=sys.exit),
        "torchrun": TorchrunLauncher(),
    }
    with tempfile.TemporaryDirectory(prefix="trainsafe-launch-") as folder:
        launched(launchers["warm"], 1, Path(folder))  # starting the server is not measured
        for ranks in (2, 4):
            ways = {
                name: partial(launched, launcher, ranks, Path(folder))
                for name, launcher in launchers.items()
            }
            seconds = in_turns({**ways, "plain": partial(torchrun, ranks)}, rounds)
            figure = {
                "ranks": ranks,
                **{f"{name}_seconds": median(taken) for name, taken in seconds.items()},
                "plain_over_warm": median(ratios(seconds["plain"], seconds["warm"])),
                "launcher_over_plain": median(ratios(seconds["torchrun"], seconds["plain"])),
            }
            figures.append(figure)
            rows.append([ranks, *(f"{value:.2f}" for value in list(figure.values())[1:])])
    server.close()
    columns = ["ranks", "warm s", "torchrun s", "plain s", "plain/warm", "torchrun/plain"]
    show(f"A group that only imports torch, medians of {rounds} rounds", columns, rows)
    finish("launch", facts, {"rounds": rounds, "groups": figures})


def in_turns(ways: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Seconds of every way, once per round, so that a drift of the machine's speed affects all."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            seconds[name].append(way())
    return seconds


def launched(launcher: Launcher, ranks: int, folder: Path) -> float:
    """The seconds of a group that `launcher` starts, until its outcomes are read."""
    began = time.perf_counter()
    task = Task.of(programs.empty, world_size=ranks)
    raise_for_failure(launcher.run(task, timeout=TIMEOUT, workdir=folder))
    return time.perf_counter() - began


def torchrun(ranks: int) -> float:
    """The seconds of the same group started by torchrun, as a user does."""
    began = time.perf_counter()
    subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", str(ranks), programs.__file__),
        ],
        env=os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        check=True,
        timeout=TIMEOUT,
    )
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
