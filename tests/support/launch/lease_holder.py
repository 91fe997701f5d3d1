"""Takes leases, one after another, as a process of its own.

    python lease_holder.py DIRECTORY SLOTS RANKS,RANKS,... LOG
    python lease_holder.py DIRECTORY SLOTS RANKS

With LOG it appends "+RANKS" when it has a lease and "-RANKS" before it gives it up.  Without,
it prints "held", and holds the lease until it is killed; a child that it forks waits as well.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
from pathlib import Path

from pytest_trainsafe.launch.resources.leases import Leases


def main(directory: Path, slots: int, ranks: list[int], log: Path | None) -> None:
    """See above."""
    leases = Leases(slots, directory=directory, environ={})
    if log is None:
        with leases.take(ranks[0]):
            child = os.fork()
            if child == 0:
                os.close(1)  # the test must not wait for this one
                signal.pause()
            print("held", child, flush=True)
            signal.pause()
        return
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for count in ranks:
        with leases.take(count):
            os.write(file, f"+{count}\n".encode())
            hashlib.sha256(bytes(5_000_000))  # some work, so that holders would overlap
            os.write(file, f"-{count}\n".encode())
    os.close(file)


if __name__ == "__main__":
    where, slots, ranks, *rest = sys.argv[1:]
    log = Path(rest[0]) if rest else None
    main(Path(where), int(slots), [int(word) for word in ranks.split(",")], log)
