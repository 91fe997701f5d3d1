"""A suspended agent of torchrun is named, and no rank is blamed for it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pytest_trainsafe.launch import GroupFailure, Task, TorchrunLauncher, raise_for_failure
from tests.support.launch import fault_programs

pytestmark = pytest.mark.usefixtures("never_hangs")


def test_an_agent_that_is_suspended_while_ranks_need_it_is_named(tmp_path: Path) -> None:
    task = Task.of(fault_programs.stop_agent, True, world_size=2)

    result = TorchrunLauncher(grace=2.0).run(task, timeout=100, workdir=tmp_path)

    assert [rank.suspended for rank in result.ranks] == [False, False]
    assert result.first_failed is None
    with pytest.raises(GroupFailure) as caught:
        raise_for_failure(result)
    assert re.match(
        r"tests.support.launch.fault_programs:stop_agent on 2 ranks: the process "
        r"that started the ranks \(id \d+\) was "
        r"suspended by a signal \(SIGSTOP or similar, process state T\) and not resumed\n",
        str(caught.value),
    )
    assert "odd one out" not in str(caught.value)
    assert result.seconds < 60


def test_an_agent_that_is_suspended_when_the_ranks_are_done_is_resumed(tmp_path: Path) -> None:
    task = Task.of(fault_programs.stop_agent, False, world_size=1)

    result = TorchrunLauncher(grace=2.0).run(task, timeout=100, workdir=tmp_path)

    raise_for_failure(result)
    assert result.values == ["done"]
    assert result.seconds < 60
