"""Accelerate 2665 (TrainCheck, Table 5): the optimizer holds parameters that get no gradient.

https://github.com/huggingface/accelerate/issues/2665, diagnosed in issue 3256: FSDP with
`use_orig_params=False` replaces the parameters by a flat one.  An optimizer that was created
before has the old parameters, which get no gradient any more, so the loss does not fall.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from pytest_trainsafe.reference_models.toolkit.flat import FlatModule
from pytest_trainsafe.reference_models.training.outcome import Outcome


def train(*, faulty: bool, seed: int = 0, steps: int = 6) -> Outcome:
    """Train a wrapped sequence tagger; with the error, the optimizer is created before wrapping."""
    torch.manual_seed(seed)
    inner = nn.Sequential(nn.Embedding(20, 16), nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 20))
    if faulty:
        optimizer = torch.optim.AdamW(inner.parameters(), lr=5e-3)
        model = FlatModule(inner)
    else:
        model = FlatModule(inner)
        optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    before = model.flat.detach().clone()
    losses = []
    for _ in range(steps):
        tokens = torch.randint(20, (8, 12))
        loss = F.cross_entropy(model(tokens).flatten(0, 1), ((tokens * 3 + 1) % 20).flatten())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    held = {id(each) for group in optimizer.param_groups for each in group["params"]}
    return Outcome(
        losses,
        {
            "moved": float((model.flat.detach() - before).abs().max()),
            "held": id(model.flat) in held,
        },
    )
