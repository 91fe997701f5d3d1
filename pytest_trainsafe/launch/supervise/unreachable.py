"""Adds a hint to a failure that the group's private network may have caused.

Called by the launchers when a group has ended.
"""

from __future__ import annotations

import re

import msgspec

from pytest_trainsafe.launch.output import without_nameless
from pytest_trainsafe.launch.result import GroupResult, RankResult

#: Errors of Python, the C library, torch, gloo and NCCL for names, addresses, devices and services
#: that cannot be reached; not gloo's "Connection refused", which concerns another rank.
_UNREACHABLE = re.compile(
    r"Network is unreachable|No route to host|Cannot assign requested address"
    r"|Temporary failure in name resolution|Name or service not known"
    r"|No address associated with hostname|[Cc]ould not resolve host|Failed to resolve"
    r"|ConnectionRefusedError|Unable to find (interface|address) for|[Nn]o socket interface found"
    # requests, urllib3, httpx and aiohttp; huggingface_hub and transformers, whose exceptions may
    # be all that is left of a longer chain
    r"|Max retries exceeded with url|httpx\.Connect(Error|Timeout)|ClientConnectorError"
    r"|requests\.exceptions\.Connection(Error|Timeout)|<urlopen error"
    r"|LocalEntryNotFoundError|[Cc]ouldn't connect to|[Pp]lease check your (internet )?connection"
)

_HINT = (
    "the ranks ran in a private network, in which they can reach only each other: if the program "
    "needs another service or network device, run with --trainsafe-network host"
)


def in_private_network(result: GroupResult) -> GroupResult:
    """A copy of the result of a group that ran in a private network, with texts adapted to that.

    Adds a hint if a rank seems to have tried to reach something outside of its network, and
    removes torch's warning that there is no name server.
    """
    ranks = tuple(
        msgspec.structs.replace(rank, stderr=without_nameless(rank.stderr, any_error=True))
        for rank in result.ranks
    )
    hint = _HINT if not result.ok and any(map(_wanted_more, ranks)) else ""
    log = without_nameless(result.launcher_log, any_error=True)
    return msgspec.structs.replace(result, ranks=ranks, launcher_log=log, hint=hint)


def _wanted_more(rank: RankResult) -> bool:
    texts = (rank.error, rank.traceback, rank.stderr)
    return rank.status != "ok" and any(_UNREACHABLE.search(text) for text in texts)
