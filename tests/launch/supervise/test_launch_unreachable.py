"""A failure that looks like a missing network names the option that gives ranks the host's."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_trainsafe.launch.result import GroupResult, RankResult
from pytest_trainsafe.launch.supervise.unreachable import in_private_network


def hint_of(error: str) -> str:
    rank = RankResult(rank=0, status="raised", folder=Path(), error_type="E", error=error)
    result = GroupResult(task="t", folder=Path(), ranks=(rank,), seconds=1.0, timeout=9.0)
    return in_private_network(result).hint


@pytest.mark.parametrize(
    "error",
    [
        "[Errno 101] Network is unreachable",
        "<urlopen error [Errno -3] Temporary failure in name resolution>",
        "ConnectionRefusedError: [Errno 111] Connection refused",
        "HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded with url: /x",
        "We couldn't connect to 'https://huggingface.co' to load the files",
        "huggingface_hub.errors.LocalEntryNotFoundError: cannot find the requested files",
        "httpx.ConnectError: All connection attempts failed",
        "Cannot find the requested files in the disk cache. Please check your connection",
    ],
)
def test_an_error_of_the_network_names_the_option(error: str) -> None:
    assert "run with --trainsafe-network host" in hint_of(error)


@pytest.mark.parametrize(
    "error", ["no samples are left", "connection of layers 1 and 2", "gloo: Connection refused"]
)
def test_another_error_names_no_network(error: str) -> None:
    assert hint_of(error) == ""
