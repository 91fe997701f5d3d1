"""What our launcher adds to torchrun: an empty program in a group of ranks, through both."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import programs
from _measure import alternate, finish, machine, median, quick, ratios, show

from pytest_trainsafe.launch import Task, TorchrunLauncher

TIMEOUT = 300.0


def main() -> None:
    pairs = 2 if quick(__doc__) else 7
    facts = machine()
    rows, figures = [], []
    with tempfile.TemporaryDirectory(prefix="trainsafe-torchrun-") as folder:
        for ranks in (2, 4):
            ours, plain = alternate(
                partial(launched, ranks, Path(folder)), partial(torchrun, ranks), pairs
            )
            ratio = median(ratios(ours, plain))
            rows.append([ranks, f"{median(ours):.2f}", f"{median(plain):.2f}", f"{ratio:.2f}"])
            figures.append(
                {
                    "ranks": ranks,
                    "launcher_seconds": median(ours),
                    "torchrun_seconds": median(plain),
                    "ratio": ratio,
                }
            )
    columns = ["ranks", "launcher s", "torchrun s", "ratio"]
    show(f"A group that only imports torch, medians of {pairs} pairs", columns, rows)
    finish("torchrun", facts, {"pairs": pairs, "groups": figures})


def launched(ranks: int, folder: Path) -> float:
    """Seconds of a group started by our launcher, its outcomes read back."""
    began = time.perf_counter()
    task = Task.of(programs.empty, world_size=ranks)
    TorchrunLauncher().run(task, timeout=TIMEOUT, workdir=folder).raise_for_failure()
    return time.perf_counter() - began


def torchrun(ranks: int) -> float:
    """Seconds of the same group as a user would start it."""
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
