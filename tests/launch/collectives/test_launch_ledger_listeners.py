"""Several parts of the recorder can follow the collectives of a rank."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pytest_trainsafe.launch.collectives import ledger
from pytest_trainsafe.launch.collectives.blocked import Blocked
from pytest_trainsafe.launch.collectives.collective import Collective
from pytest_trainsafe.launch.collectives.ledger_describe import Detail


class _Group:
    group_name = "tp"


def test_every_listener_receives_the_calls_of_its_context_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = ledger.Ledger(tmp_path / "ledger", Blocked(tmp_path / "blocked"))
    monkeypatch.setattr(ledger, "_current", opened)
    monkeypatch.setattr(torch.distributed, "get_process_group_ranks", lambda group: [0, 1])
    received: list[tuple[str, str]] = []

    def first(call: Collective) -> None:
        received.append(("first", call.op))

    def second(call: Collective) -> None:
        received.append(("second", call.op))

    def called(op: str) -> None:
        opened.record(op, Detail(torch.ones(2), _Group()))

    with ledger.following(first):
        with ledger.following(second):
            called("all_reduce")
        called("broadcast")
    called("barrier")
    assert received == [("first", "all_reduce"), ("second", "all_reduce"), ("first", "broadcast")]
