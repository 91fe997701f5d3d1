"""A draw inside of a stream of DeepSpeed's tracker has the name of the stream."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from pytest_trainsafe.frameworks import BUILT_IN
from pytest_trainsafe.record import program
from pytest_trainsafe.record.spec import RunSpec
from pytest_trainsafe.trace.reader import Trace
from pytest_trainsafe.trace.rng.events import DrawEvent
from pytest_trainsafe.trace.schema import Manifest
from pytest_trainsafe.trace.writer import write_manifest


def train(ctx: Any) -> None:
    from deepspeed.runtime.activation_checkpointing import checkpointing

    tracker = checkpointing.CudaRNGStatesTracker()
    tracker.add("sharded", 7)
    model = nn.Dropout(0.5)
    weight = nn.Parameter(torch.ones(4, 4))
    model.register_parameter("weight", weight)
    ctx.watch(model, torch.optim.SGD([weight], lr=0.1))
    with ctx.step(), ctx.microbatch(0):
        x = model(weight)
        with tracker.fork("sharded"):
            x = model(x)
        model(x).sum().backward()


def test_a_draw_has_the_name_of_the_trackers_stream(tmp_path: Path) -> None:
    pytest.importorskip("deepspeed")
    spec = RunSpec(
        program="p:train",
        point={},
        dtype="float32",
        device="cpu",
        seed=0,
        trace=str(tmp_path),
        adapters=BUILT_IN,
    )
    manifest = Manifest(
        program="p:train", point={}, world_size=1, dtype="float32", device="cpu", seed=0
    )
    write_manifest(tmp_path, manifest)
    program.record(spec, train)

    draws = [
        event
        for event in Trace.open(tmp_path).ranks[0].rng
        if isinstance(event, DrawEvent) and event.phase == "forward"
    ]
    assert [draw.stream for draw in draws] == ["", "sharded", ""]
    assert draws[0].after == draws[2].before
