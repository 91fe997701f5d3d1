"""A collective may be called with any of its arguments by keyword."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch.distributed._functional_collectives as funcol
from torch.distributed import distributed_c10d as c10d

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


def test_an_error_that_torch_raises_has_no_error_of_the_ledger_as_context() -> None:
    def gather(tensor: object) -> None:
        raise TypeError("gather() of torch says what is wrong")

    def describe(tensor: object) -> Detail:
        raise TypeError("describe() got an unexpected keyword argument")

    recorded = _recorded("gather", describe, gather)

    with pytest.raises(TypeError, match="of torch says") as raised:
        recorded("no tensor")

    assert raised.value.__context__ is None
