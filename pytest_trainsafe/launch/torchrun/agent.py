"""Runs torchrun's agent, the parent process of its ranks, with our rendezvous.

    python -m pytest_trainsafe.launch.torchrun.agent TORCHRUN-ARGUMENTS...

Started by `launcher` below a reaper.  Everything except the rendezvous is
`torch.distributed.run`'s.
"""

from __future__ import annotations

import sys

from torch.distributed import run
from torch.distributed.elastic.rendezvous import rendezvous_handler_registry

from pytest_trainsafe.launch.torchrun.rendezvous import NAME, OneAgent

if __name__ == "__main__":
    rendezvous_handler_registry.register(NAME, OneAgent)
    run.main(sys.argv[1:])
