"""What the RNG ledger adds to a step: of some 50 ms with 48 dropouts, and of a toy with one.

The same steps run with and without the ledger, in turns, in one process and one thread; nothing
else is recorded.  Times are the processor's, which other processes on the machine disturb less.
A second table has the cost of a single draw, and of the look at a step's boundary.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import torch
from _measure import alternate, differences, finish, machine, median, quick, show
from torch import nn

from pytest_trainsafe.judges.replay.rng.instrument.ledger import RngLedger
from pytest_trainsafe.record.clock import Clock
from pytest_trainsafe.record.program_dtype.random_operators import KEY_NAME
from pytest_trainsafe.trace.writer import RankWriter

#: Steps with and without the ledger, in turns.
PAIRS = 400


class Toy(nn.Module):
    """One layer and one dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.drop = nn.Linear(64, 64), nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        dropped: torch.Tensor = self.drop(self.linear(x))
        return dropped


def transformer() -> nn.Module:
    """Twelve layers with four dropouts each, one of them inside the attention."""
    layer = nn.TransformerEncoderLayer(96, 4, 384, dropout=0.1, batch_first=True)
    return nn.TransformerEncoder(layer, 12, enable_nested_tensor=False)


#: What is trained, and the shape of its batch.
PROGRAMS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "12 layers, 48 dropouts": (transformer, (5, 56, 96)),
    "one layer, one dropout": (Toy, (8, 64)),
}


def main() -> None:
    small = quick(__doc__)
    facts = machine()
    torch.set_num_threads(1)
    rows, figures = [], {}
    for name, (make, shape) in PROGRAMS.items():
        without, added = of_program(make(), shape, 10 if small else PAIRS)
        rows.append([name, f"{without:.2f}", f"{added:.3f}", f"{100 * added / without:.1f} %"])
        figures[name] = {"step_ms": without, "ledger_ms": added}
    show("Milliseconds of a step", ["", "without", "ledger adds", "share"], rows)
    single = of_calls(3 if small else 15)
    show(
        "Microseconds that the ledger adds to one",
        ["", "added"],
        [[name, f"{cost:.1f}"] for name, cost in single.items()],
    )
    finish("rng", facts, {"pairs": PAIRS, "steps": figures, "calls_us": single})


def of_program(model: nn.Module, shape: tuple[int, ...], pairs: int) -> tuple[float, float]:
    """The milliseconds of a step without the ledger, and what the ledger adds, by medians."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batch = torch.randn(shape)
    clock = Clock()

    def step() -> None:
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    def plain() -> float:
        with hidden():
            began = time.process_time()
            step()
            return (time.process_time() - began) * 1e3

    with tempfile.TemporaryDirectory(prefix="trainsafe-rng-") as folder:
        writer = RankWriter(Path(folder), 0)
        ledger = RngLedger(writer, clock)

        def recorded() -> float:
            began = time.process_time()
            ledger.boundary()
            clock.start_step()
            clock.start_microbatch(0)
            step()
            ledger.look()
            clock.end_microbatch()
            ledger.boundary()
            clock.end_step()
            writer.flush()
            return (time.process_time() - began) * 1e3

        with ledger.recording():
            ledger.watch({m: n for n, m in model.named_modules()}, [model])
            alternate(recorded, plain, 3)
            with_ledger, without = alternate(recorded, plain, pairs)
    return median(without), median(differences(with_ledger, without))


def hidden() -> AbstractContextManager[None]:
    """Take the ledger's dispatch key away for a while: operators run as they do without it."""
    key = torch._C._dispatch_key_parse(KEY_NAME)
    guard: AbstractContextManager[None] = torch._C._ExcludeDispatchKeyGuard(
        torch._C.DispatchKeySet(key)
    )
    return guard


def of_calls(rounds: int) -> dict[str, float]:
    """Microseconds that the ledger adds to one call of each kind, by medians."""
    drop, x, few = nn.Dropout(0.1), torch.ones(16, 16), torch.ones(4)

    def looped(call: Callable[[], object], number: int = 300) -> float:
        began = time.process_time()
        for _ in range(number):
            call()
        return (time.process_time() - began) / number * 1e6

    def with_ledger(call: Callable[[], object]) -> float:
        with tempfile.TemporaryDirectory(prefix="trainsafe-rng-") as folder:
            ledger = RngLedger(RankWriter(Path(folder), 0), Clock())
            with ledger.recording():
                ledger.watch({drop: "drop"}, [drop])
                return looped(call)

    calls: dict[str, Callable[[], object]] = {
        "dropout in a module": lambda: drop(x),
        "draw of a line that draws again": few.uniform_,
        "random.random() of such a line": lambda: random.random(),
        "operator that draws nothing": few.neg_,
    }
    found = {}
    for name, call in calls.items():
        plain, recorded = alternate(partial(looped, call), partial(with_ledger, call), rounds)
        found[name] = median(differences(recorded, plain))
    with tempfile.TemporaryDirectory(prefix="trainsafe-rng-") as folder:
        ledger = RngLedger(RankWriter(Path(folder), 0), Clock())
        with ledger.recording():
            found["boundary of a step"] = median([looped(ledger.boundary) for _ in range(rounds)])
    return found


if __name__ == "__main__":
    main()
