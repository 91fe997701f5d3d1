"""torchrun in a network of its own, with our rendezvous: what stands above torchrun's ranks.

    python -m pytest_trainsafe.launch.agent private|host TORCHRUN-ARGUMENTS...

Started by `torchrun`, below a guard.  Everything but the network and the rendezvous is
`torch.distributed.run`'s own.
"""

from __future__ import annotations

import sys

from pytest_trainsafe.launch import namespace


def main(network: str, arguments: list[str]) -> None:
    """Run torchrun in the network that was asked for."""
    if network == "private":
        try:
            namespace.enter()  # before torch is imported: its threads would stay outside
        except namespace.NoNamespace as error:
            sys.exit(f"no private network for the ranks: {error}")
    from torch.distributed import run
    from torch.distributed.elastic.rendezvous import rendezvous_handler_registry

    from pytest_trainsafe.launch.rendezvous import NAME, OneAgent

    rendezvous_handler_registry.register(NAME, OneAgent)
    run.main(arguments)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
