"""A test of DeepSpeed that is written like its own tests, to be run by ranks of any launcher.

Two ranks train the reference GPT for three steps in bfloat16, with four micro-batches each, both
with the engine and with DistributedDataParallel. `torch.allclose` compares the losses after each
micro-batch, and the parameters, which stage 3 gathers, after each step. This is the pattern of
DeepSpeed's tests/unit/v1/zero/test_zero_user_backward.py, with the tolerances of
tests/unit/runtime/compile/util.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

MICROBATCHES, STEPS, SAMPLES, RANKS = 4, 3, 2, 2

#: The tolerances for losses and parameters in DeepSpeed's tests.
CLOSE: Any = {"rtol": 5e-1, "atol": 1e-2}


def config(stage: int) -> dict[str, Any]:
    """The config for `deepspeed.initialize`, equal to that of the Point measured beside this."""
    from pytest_trainsafe.fixtures.deepspeed.config import read_config
    from pytest_trainsafe.reference_models.deepspeed_gpt import CONFIG

    return read_config(CONFIG, Path()).completed(
        stage=stage,
        dtype="bfloat16",
        microbatches=MICROBATCHES,
        dp=RANKS,
        tp=1,
        clip=True,
        bucket=0,
        overlap_comm=False,
        offload=False,
        cpu=True,
    )


def test(stage: int) -> None:
    """Train both ways and compare; AssertionError if they differ. Needs communication started."""
    import deepspeed
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from pytest_trainsafe.reference_models.plain.gpt import PlainGPT, Sizes, text

    sizes, given = Sizes(), config(stage)

    def model() -> PlainGPT:
        torch.manual_seed(42)
        return PlainGPT(sizes).to(torch.bfloat16)

    plain = DistributedDataParallel(model())
    settings = given["optimizer"]["params"]
    optimizer = torch.optim.AdamW(
        plain.parameters(), lr=settings["lr"], weight_decay=settings["weight_decay"]
    )
    trained = model()
    engine, *_ = deepspeed.initialize(
        model=trained, model_parameters=trained.parameters(), config=given
    )
    share = MICROBATCHES // RANKS
    first = dist.get_rank() * share
    for step in range(STEPS):
        for index in range(first, first + share):
            batch = text(sizes, step, index, SAMPLES)
            plain.require_backward_grad_sync = index == first + share - 1
            loss, expected = engine(*batch), plain(*batch)
            assert torch.allclose(loss, expected, **CLOSE), (step, index, loss, expected)
            engine.backward(loss)
            engine.step()
            (expected / share).backward()
        torch.nn.utils.clip_grad_norm_(plain.parameters(), given["gradient_clipping"])
        optimizer.step()
        optimizer.zero_grad()
        for parameter, wanted in zip(trained.parameters(), plain.parameters(), strict=True):
            gathered = [parameter] if stage == 3 else []
            with deepspeed.zero.GatheredParameters(gathered):
                assert torch.allclose(parameter, wanted, **CLOSE), (step, parameter, wanted)


def group(stage: int) -> None:
    """Run the test in a rank that a launcher of this plugin has started."""
    import torch.distributed as dist

    from pytest_trainsafe.core.rank import current_rank
    from pytest_trainsafe.fixtures.deepspeed.engine import start
    from pytest_trainsafe.record.context import Context
    from pytest_trainsafe.record.unrecorded import Unrecorded
    from pytest_trainsafe.trace.run_spec import RunSpec

    spec = RunSpec(program="", axes=(("dp", RANKS),), dtype="bfloat16")
    start(Context(spec, Unrecorded(), current_rank()))
    test(stage)
    dist.destroy_process_group()
