"""Measures what observing API calls and state costs: time and bytes per step, and switching it on.

Two programs, a small CNN (Adadelta, StepLR) and a two-layer causal transformer (AdamW, clipping,
LambdaLR), train with and without observation, in turns, in one process and one thread. Times are
CPU times. Full observation records everything that is observed by default and writes the file of a
rank; selective observation records about 20 APIs, without or with some variables.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from _measure import alternate, finish, machine, median, quick, show
from torch import nn

from pytest_trainsafe import observe
from pytest_trainsafe.judges.learn.events.file import TableWriter, read_table
from pytest_trainsafe.judges.learn.instrument.observation import Observation
from pytest_trainsafe.judges.learn.instrument.steps import Sample, Steps

#: The number of steps of one measurement, and of measurements with and without observation.
STEPS, PAIRS = 5, 5

#: APIs and variables such as a pack of rules names.
APIS = (
    *("torch.optim.Optimizer.step", "torch.optim.AdamW.step", "torch.optim.Adadelta.step"),
    *("torch.optim.AdamW.zero_grad", "torch.optim.Adadelta.zero_grad", "torch.Tensor.backward"),
    *("torch.optim.lr_scheduler.StepLR.step", "torch.optim.lr_scheduler.LambdaLR.step"),
    *("torch.nn.utils.clip_grad_norm_", "torch.nn.functional.cross_entropy"),
    *("torch.nn.functional.dropout", "torch.nn.functional.nll_loss", "torch.nn.Conv2d.forward"),
    *("torch.nn.Embedding.forward", "torch.nn.LayerNorm.forward", "torch.nn.Dropout.forward"),
    *("torch.nn.functional.max_pool2d", "torch.nn.functional.scaled_dot_product_attention"),
    *("torch.nn.functional.log_softmax", "torch.utils.data.DataLoader.__next__"),
)
VARIABLES = ("optimizer.param_groups.*", "scheduler.*")

Step = Callable[[], None]


class Cnn(nn.Module):
    """Two convolutions and two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 32, 3), nn.Conv2d(32, 64, 3)
        self.drop1, self.drop2 = nn.Dropout(0.25), nn.Dropout(0.5)
        self.fc1, self.fc2 = nn.Linear(9216, 128), nn.Linear(128, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.conv2(F.relu(self.conv1(x))))
        x = self.drop1(F.max_pool2d(x, 2)).flatten(1)
        return F.log_softmax(self.fc2(self.drop2(F.relu(self.fc1(x)))), 1)


class Block(nn.Module):
    """A layer of a transformer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).chunk(3, -1)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.drop(self.out(mixed.transpose(1, 2).flatten(2)))
        return x + self.drop(self.down(F.gelu(self.up(self.norm2(x)))))


class Lm(nn.Module):
    """A causal language model of two layers."""

    def __init__(self, vocabulary: int = 512, width: int = 128) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(128, width)
        self.blocks = nn.ModuleList(Block(width, 4) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def cnn() -> Step:
    model = Cnn()
    optimizer = torch.optim.Adadelta(model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10, gamma=0.7)
    x, y = torch.randn(32, 1, 28, 28), torch.randint(0, 10, (32,))

    def step() -> None:
        optimizer.zero_grad()
        F.nll_loss(model(x), y).backward()
        optimizer.step()
        scheduler.step()

    return step


def lm() -> Step:
    model = Lm()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: min(1.0, (n + 1) / 10))
    ids = torch.randint(0, 512, (8, 65))

    def step() -> None:
        optimizer.zero_grad()
        logits = model(ids[:, :-1])
        F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()

    return step


def main() -> None:
    small = quick(__doc__)
    facts = machine()
    torch.set_num_threads(1)
    rows, figures = [], {}
    for name, make in {"CNN": cnn, "LM": lm}.items():
        for way, keywords in _ways().items():
            found = of_step(make, keywords, 2 if small else PAIRS)
            times = found["observed_ms"] / found["bare_ms"]
            sizes = f"{found['records']:.0f}", f"{found['kib']:.0f}"
            costs = f"{found['bare_ms']:.1f}", f"{found['observed_ms']:.1f}", f"{times:.2f}"
            rows.append([name, way, *costs, *sizes])
            figures[f"{name}, {way}"] = found
    show(
        "Milliseconds of CPU time for a step",
        ["", "", "bare", "observed", "times", "records", "KiB"],
        rows,
    )
    switched = of_switching(3 if small else 11)
    show("Milliseconds to switch on and off", ["", ""], [["full observation", f"{switched:.1f}"]])
    finish("observe", facts, {"pairs": PAIRS, "steps": figures, "switching_ms": switched})


def _ways() -> dict[str, dict[str, Any]]:
    return {
        "full": {},
        "full, every 10th step": {"sample": (10, 0)},
        "20 APIs": {"apis": APIS, "variables": ()},
        "20 APIs and groups": {"apis": APIS, "variables": VARIABLES},
    }


def of_step(make: Callable[[], Step], keywords: dict[str, Any], pairs: int) -> dict[str, float]:
    """Medians for a step: milliseconds bare and observed, and records and KiB when observed."""
    torch.manual_seed(0)
    step = make()
    # A sampled observation is measured over a whole period, which has one recorded step.
    steps = max(STEPS, keywords.get("sample", (1, 0))[0])
    records, kib = [], []

    def bare() -> float:
        return timed(step, steps)

    def observed() -> float:
        with tempfile.TemporaryDirectory(prefix="trainsafe-observe-") as folder:
            path = Path(folder) / "observed.bin"
            writer = TableWriter(path, 0)
            with observation_of(writer, keywords).active():
                for _ in range(steps):
                    step()  # the first steps find the objects to observe
                writer.flush()
                size = path.stat().st_size
                taken = timed(step, steps)
                writer.flush()
            kib.append((path.stat().st_size - size) / 1024 / steps)
            records.append(read_table(path, 0).records / 2 / steps)
            return taken

    alternate(bare, observed, 1)
    without, with_it = alternate(bare, observed, pairs)
    return {
        "bare_ms": median(without),
        "observed_ms": median(with_it),
        "records": median(records),
        "kib": median(kib),
    }


def observation_of(writer: TableWriter, keywords: dict[str, Any]) -> Observation:
    """An observation like that of a rank: only the file receives events."""
    every, warm_up = keywords.get("sample", (1, 0))
    steps = Steps(Sample(every, warm_up), automatic=True)
    apis, variables = keywords.get("apis"), keywords.get("variables")
    return Observation(apis, variables, (writer,), steps, {"rank": 0, "world_size": 1})


def of_switching(count: int) -> float:
    """The median of the milliseconds that switching full observation on and off takes."""

    def switch() -> float:
        began = time.process_time()
        with observe():
            pass
        return (time.process_time() - began) * 1e3

    switch()
    return median([switch() for _ in range(count)])


def timed(step: Step, steps: int) -> float:
    """The average milliseconds of CPU time of a step, over `steps` steps."""
    began = time.process_time()
    for _ in range(steps):
        step()
    return (time.process_time() - began) * 1e3 / steps


if __name__ == "__main__":
    main()
