"""Records a tiny trace; as a script, takes one from a cache or records it there."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import torch

from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.record.reads.notes import Notes
from pytest_trainsafe.runs.cached.cache import ReferenceCache
from pytest_trainsafe.runs.cached.fingerprint import Key
from pytest_trainsafe.trace.run_spec import RunSpec
from pytest_trainsafe.trace.writer import RankWriter, manifest_of, write_manifest


def record(folder: Path, value: float) -> None:
    """A complete trace of one rank and one tensor."""
    write_manifest(
        folder,
        manifest_of(RunSpec(program="p", dtype="float64"), "cpu"),
    )
    writer = RankWriter(folder, 0)
    writer.add_tensor(TensorId(0, None, "loss", "", "loss"), torch.tensor(value).double())
    writer.close()


class PrintsWaiting(threading.Event):
    """Prints a line when it is first waited for."""

    printed = False

    def wait(self, timeout: float | None = None) -> bool:
        """Print `waiting`, once, and wait; the event is never set."""
        if not self.printed:
            print("waiting", flush=True)
        self.printed = True
        return super().wait(timeout)


def main(directory: Path) -> None:
    """Wait for a line on stdin; print `waiting` on a locked entry, then `recorded` or `reused`."""
    print("ready", flush=True)
    sys.stdin.readline()
    key = Key("0123", {"seed": 0})

    def make(folder: Path) -> Notes:
        record(folder, 1.0)
        return Notes()

    own = Path(f"{directory}-own")
    cache = ReferenceCache(directory, 2**40)
    entry = cache.get(key, make, environ={}, current=lambda: key, own=own, stop=PrintsWaiting())
    print("reused" if entry.reused else "recorded", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
