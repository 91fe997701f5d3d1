"""Judges the semantics that proofs rest on: removed entries must be named, altered ones noticed.

Of a training step (embedding, norm, attention, loss, clipping, AdamW), random entries among the
operators that it met are removed one at a time: the step must end with the error that makes a
verdict inconclusive, by that name, or torch must decompose the operator into others and every
tensor stay the same.  Of the whole table, random entries are altered (x to x + 1, a factor, a sign,
an argument replaced): their generated check must fail.  The seed is drawn when the benchmark runs,
and printed.
"""

from __future__ import annotations

import argparse
import random
import secrets
import sys
from collections import Counter
from collections.abc import Mapping

import torch
from _measure import finish, machine, show
from torch import nn
from torch.nn import functional

from pytest_trainsafe.arithmetic import (
    Doubles,
    Draw,
    ExactMode,
    MissingSemanticsError,
    Residues,
    Semantics,
    check_semantics,
    table,
)
from pytest_trainsafe.arithmetic.checks.alteration import altered

Entries = Mapping[str, Semantics]


def main() -> None:
    asked = _arguments()
    seed = secrets.randbelow(2**32) if asked.seed is None else asked.seed
    chance = random.Random(seed)
    facts = machine() | {"seed": seed}
    removals = [removed(name) for name in chance.choices(met(), k=asked.count)]
    show("Entries removed", ["entry", "verdict"], [list(each) for each in removals])
    alterations = [alteration(chance) for _ in range(asked.count)]
    show("Entries altered", ["entry", "alteration", "check"], [list(each) for each in alterations])
    named = Counter(verdict for _, verdict in removals)
    noticed = Counter(verdict for *_, verdict in alterations)
    print(f"\nseed {seed}\nremoved: {dict(named)}\naltered: {dict(noticed)}")
    finish("exact_table", facts, {"removed": dict(named), "altered": dict(noticed)})
    sys.exit(bool(named["unnoticed"] or noticed["unnoticed"]))


class Block(nn.Module):
    """Attention over a few tokens, with a residual stream and an MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(6, 4)
        self.norm = nn.LayerNorm(4)
        self.qkv = nn.Linear(4, 12)
        self.up = nn.Linear(4, 8)
        self.down = nn.Linear(8, 4)
        self.double()

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        scores = (q @ k.transpose(-1, -2) / 2).masked_fill(MASK, -torch.inf)
        x = x + scores.softmax(-1) @ v
        x = x + self.down(functional.gelu(self.up(self.norm(x))).relu())
        result: torch.Tensor = x @ self.embedding.weight.t()
        return result


TOKENS = torch.tensor([[1, 5, 0, 3], [2, 2, 4, 1]])
MASK = torch.ones(4, 4, dtype=torch.bool).triu(1)


def step(mode: ExactMode) -> list[torch.Tensor]:
    """Parameters after a training step on numbers."""
    torch.manual_seed(0)
    model = Block()
    mode.enter_(*model.parameters())
    with mode:
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=False)
        loss = functional.cross_entropy(model(TOKENS).flatten(0, 1), TOKENS.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
    return [each.detach() for each in model.parameters()]


def exactly(entries: Entries) -> list[torch.Tensor]:
    """The parameters on residues, with the decisions of the step on real numbers."""
    doubles = Doubles()
    step(ExactMode(doubles, entries))
    return step(ExactMode(Residues(1, doubles.decisions.replay()), entries))


def met() -> list[str]:
    """The entries that the step meets."""
    mode = ExactMode(Doubles())
    step(mode)
    return sorted({name if name in table() else name.removesuffix("_") for name in mode.met})


def removed(name: str) -> tuple[str, str]:
    """An entry, and what happens without it."""
    entries = table()
    before = exactly(entries)
    del entries[name]
    try:
        after = exactly(entries)
    except MissingSemanticsError as error:
        own = error.operator.removesuffix("_") == name.removesuffix("_")
        return name, "named" if own else f"another is named: {error.operator}"
    same = all(a.equal(b) for a, b in zip(before, after, strict=True))
    return name, "decomposed by torch" if same else "unnoticed"


def alteration(chance: random.Random) -> tuple[str, str, str]:
    """A random altered entry, the alteration, and whether its check fails."""
    entries = table()
    names = [
        name
        for name, each in sorted(entries.items())
        if not each.random and list(each.examples(Draw()))
    ]
    name = chance.choice(names)
    kind, entries[name] = altered(entries[name], chance)
    return name, kind, "noticed" if check_semantics(name, entries) else "unnoticed"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_const", const=10, dest="count", default=50)
    parser.add_argument("--seed", type=int, help="Instead of a seed that is drawn")
    return parser.parse_args()


if __name__ == "__main__":
    main()
