"""Measures whole commands, as typed: how long a user waits for one Point and for four.

Each is a ratio to `python -c "import torch, torch.distributed"`, run in turns on the same machine.
The targets are 2.5 for one Point of a two-layer MLP whose reference is cached, and 4 for the four
Points of the demo's GPT without a cache.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _measure import ROOT, alternate, finish, machine, median, quick, ratios, show

TORCH = [sys.executable, "-c", "import torch, torch.distributed"]

#: Without the plugins of this project's own development environment.
PYTEST = [
    *(sys.executable, "-m", "pytest", "-q", "-c", "pytest.ini"),
    *("-p", "no:syrupy", "-p", "no:hypothesispytest", "-p", "no:xdist"),
]

#: Allows Python to keep compiled modules, as users do; else every process would compile ours.
COMPILED = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}

MLP = """
import torch
from torch import nn


def train(ctx):
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4)).to(ctx.dtype)
    ctx.initialize(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ctx.watch(model, optimizer)
    for step in range(2):
        with ctx.step():
            for index in ctx.microbatches(2):
                with ctx.microbatch(index):
                    generator = torch.Generator().manual_seed(2 * step + index)
                    x = torch.randn(8, 16, generator=generator).to(ctx.dtype)
                    loss = model(x).square().mean() / 2
                    ctx.loss(loss)
                    loss.backward()
            if ctx.point.size("dp") > 1:
                for parameter in model.parameters():
                    torch.distributed.all_reduce(parameter.grad, group=ctx.group("dp"))
            optimizer.step()
            optimizer.zero_grad()
"""

TEST = """
import pytest
from pytest_trainsafe import assert_trainsafe

import mlp


@pytest.mark.trainsafe(mlp.train, dp=[2])
def test_mlp(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)
"""

#: What is measured: the file with the tests, the words after it, and whether the cache is kept.
COMMANDS = {
    "one Point of an MLP, reference cached": ("test_mlp.py", [], True),
    "the same, with --trainsafe-launcher threads": (
        *("test_mlp.py", ["--trainsafe-launcher", "threads"], True),
    ),
    "four Points of the demo, no cache": (
        "test_gpt.py",
        ["--trainsafe-sweep", "tp=1,2", "cp=1,2"],
        False,
    ),
}


def main() -> None:
    count = 2 if quick(__doc__) else 5
    facts = machine()
    rows, figures = [], {}
    with tempfile.TemporaryDirectory(prefix="trainsafe-cold-") as temporary:
        folder = Path(temporary)
        (folder / "pytest.ini").write_text("[pytest]\n")
        (folder / "mlp.py").write_text(MLP)
        (folder / "test_mlp.py").write_text(TEST)
        shutil.copy(ROOT / "docs/examples/test_gpt.py", folder)
        for name, (file, words, cached) in COMMANDS.items():
            command = [*PYTEST, file, *words]
            seconds(command, folder)  # compiles modules, fills the disk cache and ours
            whole, torch = alternate(
                functools.partial(seconds, command, folder, cached),
                functools.partial(seconds, TORCH, folder),
                count,
            )
            found = ratios(whole, torch)
            figures[name] = {"seconds": whole, "torch": torch, "ratio": median(found)}
            rows.append(
                [
                    name,
                    *(f"{s:.2f}" for s in (median(whole), median(torch))),
                    *(f"{ratio:.2f}" for ratio in (median(found), min(found), max(found))),
                ]
            )
    columns = ["command", "seconds", "import torch", "ratio", "least", "most"]
    show(f"Whole commands, medians of {count} pairs", columns, rows)
    finish("cold", facts, figures)


def seconds(command: list[str], folder: Path, cached: bool = True) -> float:
    """The wall seconds of a command that must succeed; without a cache unless `cached`."""
    if not cached:
        shutil.rmtree(folder / ".pytest_cache", ignore_errors=True)
    began = time.perf_counter()
    done = subprocess.run(
        command, cwd=folder, env=COMPILED, capture_output=True, text=True, check=False
    )
    wall = time.perf_counter() - began
    if done.returncode:
        raise SystemExit(f"{command} failed with {done.returncode}:\n{done.stdout}{done.stderr}")
    return wall


if __name__ == "__main__":
    main()
