"""What a forked process must tell torch to read again, since torch was imported before the fork.

Needs `_init_logs` of torch._logging._internal, which torch 2.10 to 2.14 have.  Without it, a forked
rank logs as the variables TORCH_LOGS and the like said when torch was imported.
"""

from __future__ import annotations

from collections.abc import Mapping

from pytest_trainsafe.compat.private import Capability

LOGS = Capability("TORCH_LOGS of a forked rank is not read")

_VARIABLES = ("TORCH_LOGS", "TORCH_LOGS_OUT", "TORCH_LOGS_FORMAT", "TORCH_TRACE")


def read_logs_again(before: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Sets up torch's logs by the present environment, if it differs from that before the fork."""
    if any(before.get(name) != now.get(name) for name in _VARIABLES):
        read = LOGS.of("torch._logging._internal", "_init_logs")
        if read is not None:
            read()
