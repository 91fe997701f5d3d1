"""What a ReplayCheckpoint costs, and how much sooner a replay reaches the step that failed.

A small transformer with dropout trains on shuffled data.  The first table has the bytes and the
milliseconds of a checkpoint, beside those of the program's own (`torch.save` of the model and of
Adam's state), and what recording the first step after it adds.  The second has the time to the
failing step from the last checkpoint, including what loading it and regenerating the order of the
data take, against training from the start.  Both ways run in turns; times are the processor's.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import torch
from _measure import alternate, differences, finish, machine, median, quick, ratios, show
from torch import nn

from pytest_trainsafe import ReplayCheckpoint, fast_forward

#: Steps of an epoch, between two checkpoints, and up to the step that fails.
EPOCH, EVERY, FAILS = 16, 20, 57

BATCH, TOKENS, WIDTH = 4, 32, 64


class Training:
    """The program: made anew for each run, as a restarted process makes it."""

    def __init__(self, layers: int) -> None:
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.1, batch_first=True)
        self.model = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.data = torch.randn(EPOCH * BATCH, TOKENS, WIDTH)
        shuffling = torch.Generator().manual_seed(1)
        self.replay = ReplayCheckpoint("bench", generators={"shuffling": shuffling})
        self.order = self.replay.regenerates(
            "order", lambda: torch.randperm(len(self.data), generator=shuffling)
        )
        self.rows = torch.arange(len(self.data))

    def run(self, first: int, last: int) -> None:
        """Train from step `first` up to `last`, without it."""
        for step in range(first, last):
            if step % EPOCH == 0:
                self.rows = self.order()
            self.step(step)

    def step(self, number: int) -> None:
        """One optimizer step."""
        rows = self.rows[number % EPOCH * BATCH :][:BATCH]
        self.optimizer.zero_grad()
        self.model(self.data[rows]).square().mean().backward()
        self.optimizer.step()

    def save_own(self, folder: Path) -> None:
        """The program's own checkpoint."""
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        torch.save(state, folder / "own.pt")

    def load(self, folder: Path) -> int:
        """Restart from a checkpoint; returns the number of the next step."""
        state = torch.load(folder / "own.pt", weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        step = self.replay.load(folder)["step"]
        self.rows = fast_forward(self.order)
        return step


def main() -> None:
    small = quick(__doc__)
    facts = machine()
    torch.set_num_threads(1)
    layers, rounds = (2, 5) if small else (12, 15)
    with tempfile.TemporaryDirectory(prefix="trainsafe-replay-") as name:
        folder = Path(name)
        cost = costs(Training(layers), folder, rounds)
        sooner = of_replay(layers, folder, 3 if small else 7)
    show(
        "A checkpoint",
        ["", "bytes", "ms"],
        [
            ["ReplayCheckpoint", cost["bytes"], f"{cost['save_ms']:.2f}"],
            ["the program's own", cost["own_bytes"], f"{cost['own_save_ms']:.2f}"],
            ["a step without it", "", f"{cost['step_ms']:.2f}"],
            ["the first step after it adds", "", f"{cost['first_step_ms']:.2f}"],
            ["any other step adds", "", f"{cost['other_step_ms']:.3f}"],
            [f"added per step, one in {EVERY}", "", f"{cost['added_ms']:.3f}"],
        ],
    )
    show(
        f"Milliseconds to the end of step {FAILS}",
        ["from the start", "from the checkpoint", "times sooner"],
        [[f"{sooner['start_ms']:.0f}", f"{sooner['replay_ms']:.0f}", f"{sooner['ratio']:.1f}"]],
    )
    finish("replay", facts, {"layers": layers, "checkpoint": cost, "failing_step": sooner})


def costs(training: Training, folder: Path, rounds: int) -> dict[str, float]:
    """The bytes and milliseconds of a checkpoint, and what it adds to the steps around it."""
    training.run(0, 2)

    def saved() -> float:
        return timed(lambda: training.replay.save(folder, step=2, epoch=0))

    def saved_own() -> float:
        return timed(lambda: training.save_own(folder))

    def first() -> float:
        training.replay.save(folder, step=2, epoch=0)
        return timed(step_in_block)

    def step_in_block() -> None:
        with training.replay.first_step():
            training.step(2)

    def plain() -> float:
        return timed(lambda: training.step(2))

    saves, own = alternate(saved, saved_own, rounds)
    size = training.replay.save(folder, step=2, epoch=0).stat().st_size
    firsts, plains = alternate(first, plain, 3 * rounds)
    others, more = alternate(lambda: timed(step_in_block), plain, 3 * rounds)
    save, extra = median(saves), median(differences(firsts, plains))
    return {
        "bytes": size,
        "save_ms": save,
        "own_bytes": (folder / "own.pt").stat().st_size,
        "own_save_ms": median(own),
        "step_ms": median(plains + more),
        "first_step_ms": extra,
        "other_step_ms": median(differences(others, more)),
        "added_ms": (save + extra) / EVERY,
    }


def of_replay(layers: int, folder: Path, rounds: int) -> dict[str, float]:
    """The milliseconds to the failing step, from the start and from the last checkpoint."""
    training = Training(layers)
    saved = FAILS // EVERY * EVERY
    training.run(0, saved)
    training.save_own(folder)
    training.replay.save(folder, step=saved, epoch=saved // EPOCH)

    def start() -> float:
        fresh = Training(layers)
        return timed(lambda: fresh.run(0, FAILS + 1))

    def replayed() -> float:
        fresh = Training(layers)
        return timed(lambda: fresh.run(fresh.load(folder), FAILS + 1))

    whole, part = alternate(start, replayed, rounds)
    return {
        "start_ms": median(whole),
        "replay_ms": median(part),
        "ratio": median(ratios(whole, part)),
        "steps_from_start": FAILS + 1,
        "steps_from_checkpoint": FAILS + 1 - saved,
    }


def timed(call: object) -> float:
    """Milliseconds of the processor that a call takes."""
    assert callable(call)
    began = time.process_time()
    call()
    return (time.process_time() - began) * 1e3


if __name__ == "__main__":
    main()
