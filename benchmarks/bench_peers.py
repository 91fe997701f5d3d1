"""Measures how long it takes to run an empty group of ranks, here and with the tools of others.

The tools are measured in turns. The targets: a warm group is at least 15 times faster than
torchrun's with 2 ranks and 10 times with 4, and faster than both peers. Only DeepSpeed's tool also
starts a process group in every test. Peers that are not installed are named and not measured.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from _measure import finish, machine, median, quick, ratios, show
from bench_launch import in_turns, launched

from pytest_trainsafe.launch import TorchrunLauncher, WarmLauncher, WarmServer

#: For each peer: its module here, the package that it needs, and the command that installs it.
NEEDS = {
    "MultiProcessTestCase": ("peer_torch", "expecttest", "pip install expecttest"),
    "deepspeed": ("peer_deepspeed", "deepspeed", "DS_BUILD_OPS=0 pip install deepspeed"),
}


def main() -> None:
    rounds = 2 if quick(__doc__) else 9
    facts = machine()
    figures: list[dict[str, Any]] = []
    server = WarmServer.start()
    with tempfile.TemporaryDirectory(prefix="trainsafe-peers-") as temporary:
        folder = Path(temporary)
        warm, torchrun = WarmLauncher(server.address, warn=sys.exit), TorchrunLauncher()
        for ranks in (2, 4):
            ways: dict[str, Callable[[], float]] = {
                "warm": partial(launched, warm, ranks, folder),
                "torchrun": partial(launched, torchrun, ranks, folder),
                **{name: partial(timed, run, ranks) for name, run in peers().items()},
            }
            # The first round is dropped: it starts servers and fills the disk cache.
            seconds = {name: taken[1:] for name, taken in in_turns(ways, rounds + 1).items()}
            figures.append(
                {
                    "ranks": ranks,
                    **{f"{name}_seconds": median(taken) for name, taken in seconds.items()},
                    **{
                        f"{name}_over_warm": median(ratios(taken, seconds["warm"]))
                        for name, taken in seconds.items()
                        if name != "warm"
                    },
                }
            )
    server.close()
    show_figures(figures, rounds)
    finish("peers", facts, {"rounds": rounds, "groups": figures})


def peers() -> dict[str, Callable[[int], None]]:
    """The function that runs an empty test, for each peer that is installed."""
    found = {}
    for name, (module, needed, _) in NEEDS.items():
        if importlib.util.find_spec(needed) is not None:
            with apart():
                found[name] = importlib.import_module(module).run
    return found


def timed(run: Callable[[int], None], ranks: int) -> float:
    """The seconds that a peer's empty test takes."""
    with apart():
        began = time.perf_counter()
        run(ranks)
        return time.perf_counter() - began


@contextlib.contextmanager
def apart() -> Iterator[None]:
    """Discards the output of a peer in this context, and restores the environment afterwards."""
    kept = os.dup(1), os.dup(2)
    before = dict(os.environ)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.environ |= {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}  # as in our ranks
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
        for stream, there in zip((1, 2), kept, strict=True):
            os.dup2(there, stream)
            os.close(there)
        os.close(nowhere)


def show_figures(figures: list[dict[str, Any]], rounds: int) -> None:
    names = [key.removesuffix("_seconds") for key in figures[0] if key.endswith("_seconds")]
    rows = [
        [
            figure["ranks"],
            *(f"{figure[f'{name}_seconds']:.2f}" for name in names),
            *(f"{figure[f'{name}_over_warm']:.1f}" for name in names[1:]),
        ]
        for figure in figures
    ]
    columns = ["ranks", *(f"{name} s" for name in names), *(f"{name}/warm" for name in names[1:])]
    show(f"An empty group, medians of {rounds} rounds", columns, rows)
    for name in NEEDS.keys() - set(names):
        _, needed, command = NEEDS[name]
        print(f"  {name} is not measured, because {needed} is not installed: {command}")
    if "deepspeed" in names:
        print("  deepspeed: as its tests' class DistributedTest, without its sleep of 0.5 s.")


if __name__ == "__main__":
    main()
