"""Measures how often different functions are found equal on exact numbers, with small primes.

The bound of a proof (`arithmetic/packing.py`) says that a row of d products and functions loses a
difference modulo a prime p with a probability of at most d / p.  With primes of 31 bits nothing is
ever lost, so nothing can be measured.  Here the primes have 10 bits.  A training step (embedding,
norm, attention, loss, clipping, AdamW) and versions of it that compute something else run on the
same random residues.  Of the elements of parameters that differ as functions, which the large
primes show, some are equal modulo a small prime by chance.  Their share, times p, is the d that the
bound should have; it is compared with the number of products and functions, which the bound takes.

    python benchmarks/bench_exact_bound.py --samples 40
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from _measure import finish, machine, show
from bench_exact_table import MASK, TOKENS, Block
from torch import nn
from torch.nn import functional

from pytest_trainsafe.arithmetic import (
    Doubles,
    ExactMode,
    Residues,
    field,
    hashing,
    packing,
    residues,
)

#: Each is 7 modulo 8, like the primes of proofs.
SMALL = (1031, 991)

Forward = Callable[[Block, torch.Tensor], torch.Tensor]


def forward(
    block: Block,
    tokens: torch.Tensor,
    scale: float = 0.5,
    skip: bool = True,
    double: bool = False,
    swapped: bool = False,
    norm: bool = True,
) -> torch.Tensor:
    """The forward of `Block`, with one part changed."""
    x = block.embedding(tokens)
    q, k, v = block.qkv(block.norm(x)).chunk(3, -1)
    if swapped:
        k, v = v, k
    scores = (q @ k.transpose(-1, -2) * scale).masked_fill(MASK, -torch.inf)
    attended = scores.softmax(-1) @ v
    x = (x + attended if skip else attended) + (attended if double else 0)
    h = block.norm(x) if norm else x
    x = x + block.down(functional.gelu(block.up(h)).relu())
    result: torch.Tensor = x @ block.embedding.weight.t()
    return result


CHANGES: dict[str, dict[str, Any]] = {
    "another scale of attention": {"scale": 0.25},
    "no residual": {"skip": False},
    "attention counted twice": {"double": True},
    "keys and values swapped": {"swapped": True},
    "a norm left out": {"norm": False},
    "another learning rate": {"learning_rate": 0.02},
    "another limit of clipping": {"limit": 0.2},
}


def step(
    mode: ExactMode, learning_rate: float = 0.01, limit: float = 0.1, **changed: Any
) -> torch.Tensor:
    """All parameters after a step."""
    torch.manual_seed(0)
    block = Block()
    mode.enter_(*block.parameters())
    with mode:
        optimizer = torch.optim.AdamW(block.parameters(), lr=learning_rate, foreach=False)
        logits = forward(block, TOKENS, **changed)
        functional.cross_entropy(logits.flatten(0, 1), TOKENS.flatten()).backward()
        nn.utils.clip_grad_norm_(block.parameters(), limit)
        optimizer.step()
    return torch.cat([each.detach().reshape(-1) for each in block.parameters()])


def exactly(sample: int, **changed: Any) -> tuple[np.ndarray[Any, Any], int]:
    """The parameters' residues modulo each prime, and how many products were computed."""
    doubles = Doubles()
    step(ExactMode(doubles), **changed)
    numbers = Residues(sample, doubles.decisions.replay())
    parameters = step(ExactMode(numbers), **changed)
    return np.stack([each.numpy() for each in packing.unpack(parameters)]), numbers.multiplications


@contextmanager
def small_primes() -> Iterator[None]:
    """Computes modulo `SMALL`, where the inverse of zero is zero."""

    def inverse(x: packing.Bits) -> packing.Bits:
        return field.power(x, (SMALL[0] - 2, SMALL[1] - 2))

    with ExitStack() as around:
        for module in (packing, field, hashing, residues):
            around.enter_context(patch.object(module, "PRIMES", SMALL))
        around.enter_context(patch.object(field, "_BOTH", np.array(SMALL).reshape(2, 1)))
        around.enter_context(patch.object(field, "inverse_of", inverse))
        packing.residues_of.cache_clear()
        per_1024 = packing.bits_of(field.inverse(packing.packed(1024)))
        around.enter_context(patch.object(residues, "_PER_1024", per_1024))
        yield
    packing.residues_of.cache_clear()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=40, help="Of random residues, a change")
    asked = parser.parse_args()
    facts, rows = machine(), []
    clean, count = exactly(0)
    different = {
        what: (clean != exactly(0, **changed)[0]).any(0) for what, changed in CHANGES.items()
    }
    lost, both, judged = 0, 0, 0
    with small_primes():
        references = [exactly(sample)[0] for sample in range(asked.samples)]
        for what, changed in CHANGES.items():
            where = different[what]
            equal = np.stack(
                [
                    (reference == exactly(sample, **changed)[0])[:, where]
                    for sample, reference in enumerate(references)
                ]
            )
            found, twice = int(equal.sum()), int(equal.all(1).sum())
            of = int(where.sum()) * asked.samples
            rows.append([what, str(of), str(found), f"{_degree(found, of):.2f}", str(twice)])
            lost, both, judged = lost + found, both + twice, judged + of
    columns = ["change", "elements", "equal modulo a prime", "times p", "modulo both"]
    show("Elements that differ as functions", columns, rows)
    chance = judged / (SMALL[0] * SMALL[1])
    print(
        f"\nall: {_degree(lost, judged):.2f} times 1 / p, where the bound takes {2 * count}; "
        f"{both} equal modulo both, where independent residues give {chance:.2f}"
    )
    figures = {
        "elements": judged,
        "degree": _degree(lost, judged),
        "both": both,
        "bound": 2 * count,
    }
    finish("exact_bound", facts, figures)
    sys.exit(_degree(lost, judged) > 2 * count)


def _degree(equal: int, elements: int) -> float:
    """The share of residues that are equal, times the primes' harmonic mean."""
    return equal / elements / sum(1 / prime for prime in SMALL)


if __name__ == "__main__":
    main()
