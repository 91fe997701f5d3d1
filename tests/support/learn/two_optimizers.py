"""Programs of two optimizers of one model, which share a gradient scaler."""

from __future__ import annotations

from collections.abc import Callable

import torch

from tests.support.learn.slips import net


def scaled(kind: str, enabled: bool = True) -> None:
    """Updates the scaler "after both" have stepped, or "between".

    "in turn" has a loss for each optimizer, and "early" unscales both before the first step.
    """
    model = net()
    parts = [torch.optim.SGD(model[at].parameters(), lr=0.1) for at in (0, 3)]
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, enabled=enabled)
    for _ in range(5):
        for turn in [parts] if kind != "in turn" else [[each] for each in parts]:
            model.zero_grad()
            scaler.scale(model(torch.randn(8, 4)).square().mean()).backward()
            for part in turn if kind == "early" else ():
                scaler.unscale_(part)
            for part in turn:
                scaler.step(part)
                if kind == "between":
                    scaler.update()
            if kind != "between":
                scaler.update()


def one(late: bool = False, begin: Callable[[int], None] = lambda step: None) -> None:
    """One optimizer, which steps after each backward; if `late`, before the next one.

    `begin` is called when a step begins.
    """
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for step in range(5):
        begin(step)
        if late and step:
            scaler.step(optimizer)
            scaler.update()
        model.zero_grad()
        scaler.scale(model(torch.randn(8, 4)).square().mean()).backward()
        if not late:
            scaler.step(optimizer)
            scaler.update()
