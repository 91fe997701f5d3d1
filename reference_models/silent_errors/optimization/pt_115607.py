"""PyTorch 115607 (TrainCheck's B8): a compiled optimizer step that stops updating.

https://github.com/pytorch/pytorch/issues/115607: with torch.compile, after an iteration without a
backward, in which gradients are None, `step` no longer changes anything.  The step that was traced
without gradients had no guard on their absence, and was used again when there were gradients.

`TracedAdam` traces its step as such a compiler does: a trace updates the parameters that had a
gradient when it was made, and its guards say whether it may be used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, overload

import torch
from torch import nn
from torch.nn import functional as F

from pytest_trainsafe.reference_models.training.outcome import Outcome


class TracedAdam(torch.optim.Adam):
    """Adam with traced steps; the newest trace whose guards hold is used."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, lr=lr)
        self.traces: list[list[bool]] = []

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Take one step with a trace whose guards hold; trace anew if there is none."""
        assert closure is None
        parameters = [each for group in self.param_groups for each in group["params"]]
        present = [each.grad is not None for each in parameters]
        trace = next((each for each in self.traces if self.guarded(each, present)), None)
        if trace is None:
            trace = present
            self.traces.insert(0, trace)
        hidden = {
            each: each.grad for each, in_it in zip(parameters, trace, strict=True) if not in_it
        }
        for each in hidden:
            each.grad = None
        super().step()
        for each, gradient in hidden.items():
            each.grad = gradient
        return None

    def guarded(self, trace: list[bool], present: list[bool]) -> bool:
        """Whether a trace may be used: the same parameters have gradients as when it was made."""
        return trace == present


class UnguardedAdam(TracedAdam):
    """TracedAdam with the error: a trace made without some gradients is used when they exist."""

    def guarded(self, trace: list[bool], present: list[bool]) -> bool:
        """Whether every parameter that the trace updates has a gradient."""
        return all(there for used, there in zip(trace, present, strict=True) if used)


#: The iteration that only evaluates; the error shows in the next one.
FORWARD_ONLY = 2


def train(*, faulty: bool, seed: int = 0, steps: int = 6) -> Outcome:
    """Fit a small regression; iteration `FORWARD_ONLY` has no backward."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    make = UnguardedAdam if faulty else TracedAdam
    optimizer = make(model.parameters(), lr=1e-2)
    weights = torch.randn(8, 1)
    losses, moved = [], []
    for step in range(steps):
        before = [each.detach().clone() for each in model.parameters()]
        inputs = torch.randn(32, 8)
        loss = F.mse_loss(model(inputs), inputs @ weights)
        optimizer.zero_grad()
        if step != FORWARD_ONLY:
            loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
        after = list(model.parameters())
        moved.append(any(not torch.equal(a, b) for a, b in zip(after, before, strict=True)))
    return Outcome(losses, {"moved": moved})
