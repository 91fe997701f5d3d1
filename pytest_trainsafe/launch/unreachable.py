"""What to say of a rank that wanted something from outside its group's private network.

Called by the launchers, once a group has ended.
"""

from __future__ import annotations

import re

import msgspec

from pytest_trainsafe.launch.result import GroupResult, RankResult

#: What Python, the C library, torch, gloo and NCCL say of names, addresses, devices and services
#: that are not there.  gloo's "Connection refused" is missing: it speaks of another rank.
_UNREACHABLE = re.compile(
    r"Network is unreachable|No route to host|Cannot assign requested address"
    r"|Temporary failure in name resolution|Name or service not known"
    r"|No address associated with hostname|[Cc]ould not resolve host|Failed to resolve"
    r"|ConnectionRefusedError|Unable to find (interface|address) for|[Nn]o socket interface found"
)

_HINT = (
    "the ranks had a private network, where they reach nothing but each other: if the program "
    "needs another service or device, run with --trainsafe-network host"
)


def with_hint(result: GroupResult) -> GroupResult:
    """The result of a group that ran in a private network, with a hint where that may be why."""
    if result.ok or not any(map(_wanted_more, result.ranks)):
        return result
    return msgspec.structs.replace(result, hint=_HINT)


def _wanted_more(rank: RankResult) -> bool:
    texts = (rank.error, rank.traceback, rank.stderr)
    return rank.status != "ok" and any(_UNREACHABLE.search(text) for text in texts)
