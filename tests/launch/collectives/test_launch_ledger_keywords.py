"""A collective may be called with any of its arguments by keyword."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed._functional_collectives as funcol
from torch.distributed import distributed_c10d as c10d

from pytest_trainsafe.launch.collectives import ledger
from pytest_trainsafe.launch.collectives.blocked import Blocked
from pytest_trainsafe.launch.collectives.collective import read_ledger
from pytest_trainsafe.launch.collectives.ledger import _recorded
from pytest_trainsafe.launch.collectives.ledger_describe import DESCRIBE, FUNCTIONAL, Detail

CALLS = [
    pytest.param(getattr(module, name), describe, id=f"{module.__name__}.{name}")
    for module, table in ((c10d, DESCRIBE), (funcol, FUNCTIONAL))
    for name, (_, describe) in table.items()
    if hasattr(module, name)  # some are newer than the oldest supported torch
]


@pytest.mark.parametrize(("public", "describe"), CALLS)
def test_the_ledger_takes_every_argument_by_its_name_in_torch(
    public: Callable[..., Any], describe: Callable[..., Detail]
) -> None:
    names = inspect.signature(public).parameters

    inspect.signature(describe).bind(**dict.fromkeys(names))


class _World:
    group_name = "world"


def test_a_call_with_async_op_is_recorded_as_asynchronous_however_it_is_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rank0" / "ledger"
    path.parent.mkdir()
    opened = ledger.Ledger(path, Blocked(tmp_path / "blocked"))
    monkeypatch.setattr(ledger, "_current", opened)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_process_group_ranks", lambda group: [0, 1])
    op, describe = DESCRIBE["all_reduce"]
    reduced = _recorded(op, describe, lambda *given, **named: None)
    sent = _recorded("send", DESCRIBE["send"][1], lambda *given, **named: None)
    tensor, group = torch.ones(2), _World()

    reduced(tensor, group=group)
    reduced(tensor, group=group, async_op=True)
    reduced(tensor, torch.distributed.ReduceOp.SUM, group, True)
    reduced(tensor, torch.distributed.ReduceOp.SUM, group, False)
    sent(tensor, 1, group)

    calls, _ = read_ledger(path)
    assert [call.asynchronous for call in calls] == [False, True, True, False, False]


def test_an_error_that_torch_raises_has_no_error_of_the_ledger_as_context() -> None:
    def gather(tensor: object) -> None:
        raise TypeError("gather() of torch says what is wrong")

    def describe(tensor: object) -> Detail:
        raise TypeError("describe() got an unexpected keyword argument")

    recorded = _recorded("gather", describe, gather)

    with pytest.raises(TypeError, match="of torch says") as raised:
        recorded("no tensor")

    assert raised.value.__context__ is None
