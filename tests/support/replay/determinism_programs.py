"""A small deterministic training, and variants with one cause of nondeterminism each.

Run as a script, it records the jobs that it is given as JSON.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

BATCH, WIDTH = 4, 300

#: The parameter of glibc's mallopt for the byte that memory is filled with.
M_PERTURB = -6

#: Objects that live as long as the process, so that each has an address of its own.
KEPT: list[object] = []

#: Enough strings that processes with different hashes iterate over the set in different orders.
NAMES = {f"shard-{number}" for number in range(40)}


def train(ctx: Any, fault: str = "") -> None:
    """Train two linear layers for two steps, with one micro-batch per rank."""
    model = nn.Sequential(nn.Linear(WIDTH, 8), nn.Linear(8, 1))
    ctx.initialize(model)
    ctx.watch(model)
    noise = np.random.default_rng(None if fault == "unseeded generator" else ctx.seed)
    names = iter(sorted(NAMES))
    for step in range(2):
        if fault == "order of a set" and step == 1:
            names = iter(NAMES)
        began = time.perf_counter()
        with ctx.step(), racing_bincount(fault == "nondeterministic operator"):
            for index in ctx.microbatches(ctx.point.size("dp")):
                with ctx.microbatch(index):
                    examples = load(next(names), fault)
                    if fault == "order of a set" and step == 1:
                        # One shard alone is the same in one pair of processes of forty.
                        others = [load(next(names), fault)[:1] for _ in range(BATCH - 1)]
                        examples = torch.cat([examples[:1], *others])
                    x = examples + torch.from_numpy(noise.standard_normal(WIDTH))
                    x = x.to(ctx.dtype)
                    scale = 1.0
                    if fault == "scale by the time" and step == 1:
                        scale += time.time() % 1
                    if fault == "scale by os.urandom":
                        scale += int.from_bytes(os.urandom(4), "big") / 2**32
                    if fault == "scale by an address":
                        KEPT.append(object())
                        scale += id(KEPT[-1]) % 2**20 / 2**20
                    if fault == "race of two threads" and step == 0:
                        scale += first_of_two_threads()
                    weights = torch.linspace(0, 1, BATCH, dtype=ctx.dtype)
                    counts = torch.bincount(torch.arange(BATCH), weights)
                    loss = (model(x) * counts[:, None] * scale).square().mean()
                    loss.backward()
                    ctx.loss(loss)
            # Without torch.optim, which imports the compiler: two seconds in each process.
            for parameter in model.parameters():
                if ctx.point.size("dp") > 1:
                    torch.distributed.all_reduce(parameter.grad, group=ctx.group("dp"))
                assert parameter.grad is not None
                parameter.data -= 0.01 * parameter.grad
                parameter.grad = None
        print("seconds", time.perf_counter() - began)  # a clock on which no result depends


def load(name: str, fault: str) -> torch.Tensor:
    """The examples of a shard, written into newly allocated memory."""
    examples = torch.empty(BATCH, WIDTH, dtype=torch.float64)
    written = BATCH - 1 if fault == "memory that is not written" else BATCH
    generator = torch.Generator().manual_seed(int(name.partition("-")[2]))
    examples[:written] = torch.randn(written, WIDTH, generator=generator, dtype=torch.float64)
    return examples


def first_of_two_threads() -> float:
    """The number that the first of two threads appends; who is first alternates, as in a race."""
    found: list[float] = []
    KEPT.append(found)
    for number in (1.0, 2.0) if len(KEPT) % 2 else (2.0, 1.0):
        thread = threading.Thread(target=found.append, args=(number,))
        thread.start()
        thread.join()
    return found[0]


@contextmanager
def racing_bincount(wanted: bool) -> Iterator[None]:
    """Make `torch.bincount` return another result in every call, as a race might."""
    if not wanted:
        yield
        return

    def raced(x: torch.Tensor, weights: torch.Tensor, minlength: int = 0) -> torch.Tensor:
        late = int.from_bytes(os.urandom(4), "big") / 2**32
        return torch.zeros_like(weights).index_add(0, x, weights) + late

    library = torch.library.Library("aten", "IMPL")
    library.impl("bincount", raced, "CPU")
    try:
        yield
    finally:
        library._destroy()


def record_all(jobs: list[tuple[str, int, bool, int, str]]) -> None:
    """Record jobs: a fault, the step whose operators are recorded, `sealed`, memory, the folder.

    The byte that new memory is filled with is set for each job, which saves a process per byte.
    """
    from pytest_trainsafe.record import program
    from pytest_trainsafe.record.assignment import Assignment
    from pytest_trainsafe.trace.run_spec import RunSpec
    from pytest_trainsafe.trace.writer import manifest_of, write_manifest

    for fault, step, sealed, byte, folder in jobs:
        assert ctypes.CDLL(None).mallopt(M_PERTURB, byte) == 1
        spec = RunSpec(
            program="tests.support.replay.determinism_programs:train",
            dtype="float64",
            operators=step,
            sealed=sealed,
        )
        write_manifest(Path(folder), manifest_of(spec, "cpu"))
        program.record(Assignment(spec=spec, trace=folder), partial(train, fault=fault))


if __name__ == "__main__":
    record_all(json.loads(sys.argv[1]))
