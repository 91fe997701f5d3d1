"""A rendezvous for torchrun's agent on one machine: on loopback, and without unpickling.

torch's own rendezvous for elastic groups (`c10d`) serves its store on every address of the machine
and passes what it finds there to `pickle.loads`.  Our groups are not elastic: a single agent
starts all ranks.  Registered by `agent`.
"""

from __future__ import annotations

from torch.distributed import HashStore, PrefixStore  # type: ignore[attr-defined]
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
)

from pytest_trainsafe.launch.torchrun.store import hold_store, listen

#: The name by which `--rdzv-backend` selects this rendezvous.
NAME = "trainsafe"


class OneAgent(RendezvousHandler):
    """The rendezvous of a single agent, which also serves the store of its ranks.

    The store that several agents would share is in this process's memory, so the agent reads
    nothing from a socket.
    """

    def __init__(self, parameters: RendezvousParameters) -> None:
        assert parameters.max_nodes == 1, parameters.max_nodes
        self._run_id = parameters.run_id
        self._agents = HashStore()
        self._rounds = 0
        listening = listen()
        self._ranks = RendezvousStoreInfo("127.0.0.1", listening.getsockname()[1])
        self._store = hold_store(listening)

    def get_backend(self) -> str:
        """The name of this rendezvous."""
        return NAME

    @property
    def use_agent_store(self) -> bool:
        """Returns True, because ranks use the store that the agent serves."""
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        """Returns at once, because there is one agent, which has rank 0 in a world of size 1."""
        self._rounds += 1
        return RendezvousInfo(PrefixStore(f"{self._rounds}", self._agents), 0, 1, self._ranks)

    def is_closed(self) -> bool:
        """Returns False, because the rendezvous never closes."""
        return False

    def set_closed(self) -> None:
        """Does nothing."""

    def num_nodes_waiting(self) -> int:
        """Returns 0, because there are no other agents."""
        return 0

    def get_run_id(self) -> str:
        """The id of the torchrun call."""
        return self._run_id

    def shutdown(self) -> bool:
        """Does nothing; the store is freed with this object."""
        return True
