"""Small trainings in this process, observed as a test observes them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch
from torch import nn

from pytest_trainsafe.judges.learn.check.offline import Checked, check
from pytest_trainsafe.judges.learn.inference.learn import learn
from pytest_trainsafe.judges.learn.instrument.observation import observe
from pytest_trainsafe.judges.learn.invariant import Invariant
from pytest_trainsafe.judges.learn.packs.pack import Pack
from pytest_trainsafe.judges.learn.registry import relations
from pytest_trainsafe.judges.learn.run import ObservedRun

RULES = relations()
Train = Callable[[], object]


def observed(train: Train, program: str = "own", setting: str = "") -> ObservedRun:
    """The observed run of a training."""
    torch.manual_seed(0)
    with observe() as observation:
        train()
    return ObservedRun(program, [observation.table], {}, setting)


def learned(train: Train, *names: str, program: str = "own") -> list[Invariant]:
    """The invariants of some relations, learned from a training."""
    found = learn([observed(train, program)]).invariants
    return [each for each in found if each.claim.relation in names]


def checked(train: Train, rules: Sequence[Invariant], program: str = "own") -> Checked:
    """The check of all these rules on a training, whatever their confidence."""
    pack = Pack("own", tuple(rules))
    return check(observed(train, program), [pack], RULES, min_confidence=0.0)


def said(found: Checked) -> list[str]:
    """The broken rules in words, each once."""
    explained = [
        RULES[each.invariant.claim.relation].explain(each.invariant.claim).sentence
        for each in found.violations
    ]
    return list(dict.fromkeys(explained))


def data(rows: int = 8, width: int = 4) -> torch.Tensor:
    """A batch that depends on its size only."""
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(rows))


class Net(nn.Module):
    """Two layers with dropout between them, and a head that may share the first weight."""

    def __init__(self, tied: bool = False) -> None:
        super().__init__()
        self.body = nn.Linear(4, 4, bias=False)
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(4, 4, bias=False)
        if tied:
            self.head.weight = self.body.weight

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.drop(self.body(given)))
        return out


def loop(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    before: Train = lambda: None,
    steps: int = 4,
) -> None:
    """A plain loop; `before` is called before each step's forward."""
    for _ in range(steps):
        before()
        optimizer.zero_grad()
        model(data()).square().mean().backward()
        optimizer.step()


def partial(train: Callable[..., object], **given: object) -> Train:
    """A training with arguments."""
    return functools.partial(train, **given)
