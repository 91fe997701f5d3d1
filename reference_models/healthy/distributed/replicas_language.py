"""DistributedDataParallel with accumulation and `no_sync`: AdamW, clipping, a language model."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from pytest_trainsafe.reference_models.training.outcome import Outcome

if TYPE_CHECKING:
    from pytest_trainsafe.record.context import Context


def train(
    ctx: Context, steps: int = 4, accumulate: int = 2, width: int = 16, max_norm: float = 1.0
) -> Outcome:
    """Train with gradients that are reduced only in the last backward of a step."""
    import torch
    from torch import nn
    from torch.nn import functional as F
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(ctx.seed)
    model = nn.Sequential(
        nn.Embedding(15, width),
        nn.Linear(width, width),
        nn.GELU(),
        nn.LayerNorm(width),
        nn.Linear(width, 15),
    )
    replica = DistributedDataParallel(model, process_group=ctx.group("dp"))
    optimizer = torch.optim.AdamW(replica.parameters(), lr=1e-2, weight_decay=0.1)
    ctx.watch(replica, optimizer, level="step")
    data = torch.Generator().manual_seed(100 * ctx.seed + ctx.rank)
    outcome = Outcome()
    for _ in range(steps):
        with ctx.step():
            total = 0.0
            for number in range(accumulate):
                last = number == accumulate - 1
                tokens = torch.randint(15, (6, 8), generator=data)
                with contextlib.nullcontext() if last else replica.no_sync():
                    scores = replica(tokens).flatten(0, 1)
                    loss = F.cross_entropy(scores, ((tokens + 4) % 15).flatten()) / accumulate
                    loss.backward()  # type: ignore[no-untyped-call]
                total += loss.item()
            nn.utils.clip_grad_norm_(replica.parameters(), max_norm)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            outcome.losses.append(total)
    return outcome
