"""What `deterministic_runtime` costs: training steps inside it against the same steps outside it.

The two kinds of steps run in turns, in one process and one thread.  The programs are a
convolutional network, a transformer, and a table of embeddings whose gradients are scattered,
for which torch has separate deterministic algorithms.  They run on a GPU if the machine has one.
Times are the processor's on a CPU, and those of the clock on a GPU, after synchronisation.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from _measure import alternate, differences, finish, machine, median, quick, ratios, show
from torch import nn

from pytest_trainsafe import deterministic_runtime

#: Steps of each kind, in turns.
PAIRS = 200

#: The device of the programs.
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Embeddings(nn.Module):
    """A table whose gradient adds many rows into few: `index_add` and the embedding's backward."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(1000, 64)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """The sums of the embeddings in 64 groups, [64, 64], of row numbers, [batch]."""
        sums = rows.new_zeros((64, 64), dtype=torch.float32)
        return sums.index_add(0, rows % 64, self.table(rows))


def convolutions() -> nn.Module:
    """Four convolutions with BatchNorm."""
    blocks: list[nn.Module] = []
    for inputs, outputs in ((3, 16), (16, 32), (32, 32), (32, 64)):
        blocks += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*blocks)


def transformer() -> nn.Module:
    """Six layers, with dropout."""
    layer = nn.TransformerEncoderLayer(96, 4, 384, dropout=0.1, batch_first=True)
    return nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)


#: What is trained, and on which batch.
PROGRAMS: dict[str, tuple[Callable[[], nn.Module], Callable[[], torch.Tensor]]] = {
    "4 convolutions": (convolutions, lambda: torch.randn(8, 3, 32, 32)),
    "transformer of 6 layers": (transformer, lambda: torch.randn(4, 48, 96)),
    "embeddings, index_add": (Embeddings, lambda: torch.randint(1000, (20_000,))),
}


def main() -> None:
    """Measure each program, and the context manager itself."""
    small = quick(__doc__)
    facts = machine() | {"device": DEVICE.type}
    torch.set_num_threads(1)
    rows, figures = [], {}
    for name, (make, batch) in PROGRAMS.items():
        torch.manual_seed(0)
        plain, added, ratio = of_program(
            make().to(DEVICE), batch().to(DEVICE), 5 if small else PAIRS
        )
        rows.append([name, f"{plain:.2f}", f"{added:+.2f}", f"{ratio:.2f}"])
        figures[name] = {"plain_ms": plain, "added_ms": added, "ratio": ratio}
    show("Milliseconds of a step", ["", "plain", "deterministic adds", "times"], rows)
    entered = median([milliseconds(enter) for _ in range(3 if small else 50)])
    print(f"\nEntering and leaving deterministic_runtime takes {entered:.2f} ms")
    finish("deterministic", facts, {"pairs": PAIRS, "steps": figures, "enter_ms": entered})


def of_program(model: nn.Module, batch: torch.Tensor, pairs: int) -> tuple[float, float, float]:
    """The milliseconds of a plain step, those that determinism adds, and their ratio: medians."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step() -> None:
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    def deterministic() -> float:
        with deterministic_runtime():
            return milliseconds(step)

    alternate(deterministic, lambda: milliseconds(step), 3)
    inside, outside = alternate(deterministic, lambda: milliseconds(step), pairs)
    return median(outside), median(differences(inside, outside)), median(ratios(inside, outside))


def enter() -> None:
    """Enter and leave the context manager."""
    with deterministic_runtime():
        pass


def milliseconds(call: Callable[[], None]) -> float:
    """The milliseconds of a call."""
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()
        began = time.perf_counter()
        call()
        torch.cuda.synchronize()
        return (time.perf_counter() - began) * 1e3
    began = time.process_time()
    call()
    return (time.process_time() - began) * 1e3


if __name__ == "__main__":
    main()
