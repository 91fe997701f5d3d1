"""DeepSpeed in a single process, trained by a loop that marks no steps."""

from __future__ import annotations

import os
from typing import Any
from unittest import mock

from pytest_trainsafe.reference_models.training.outcome import Outcome


def train(
    *, seed: int = 0, steps: int = 5, accumulate: int = 1, stage: int = 1, clip: float = 0.0
) -> Outcome:
    """Learn the remainder of a sum, with RMSprop and a schedule that the engine steps.

    Starts DeepSpeed's communication in this process, and ends it.
    """
    # DeepSpeed's launcher sets the others.
    environ = {"DS_ACCELERATOR": "cpu", "LOCAL_RANK": "0", "LOCAL_SIZE": "1"}
    with mock.patch.dict(os.environ, environ):
        import deepspeed
        import torch
        import torch.distributed as dist

        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # it would be compiled
        store = dist.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        try:
            deepspeed.init_distributed("gloo", auto_mpi_discovery=False, verbose=False)
            torch.manual_seed(seed)
            return _trained(deepspeed, seed, steps, accumulate, stage, clip)
        finally:
            deepspeed.comm.destroy_process_group()


def _trained(
    deepspeed: Any, seed: int, steps: int, accumulate: int, stage: int, clip: float
) -> Outcome:
    import torch
    from torch import nn
    from torch.nn import functional as F

    model = nn.Sequential(nn.Embedding(7, 8), nn.Flatten(), nn.Linear(24, 16), nn.GELU())
    model.append(nn.Linear(16, 7))
    optimizer = torch.optim.RMSprop(model.parameters(), lr=5e-3)
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=optimizer,
        lr_scheduler=torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5),
        config={
            "train_micro_batch_size_per_gpu": 16,
            "gradient_accumulation_steps": accumulate,
            "gradient_clipping": clip,
            "zero_optimization": {"stage": stage},
            "zero_allow_untested_optimizer": True,
        },
    )
    data = torch.Generator().manual_seed(41 + seed)
    outcome = Outcome()
    for _ in range(steps):
        total = 0.0
        for _ in range(accumulate):
            numbers = torch.randint(7, (16, 3), generator=data)
            loss = F.cross_entropy(engine(numbers), numbers.sum(dim=1) % 7)
            engine.backward(loss)
            engine.step()
            total += loss.item() / accumulate
        outcome.losses.append(total)
    return outcome
