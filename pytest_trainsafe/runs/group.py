"""The object behind the fixture `torchrun_group`: it runs functions in a group of ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pytest_trainsafe.errors import ArgumentError
from pytest_trainsafe.launch import GroupResult, Task, raise_for_failure
from pytest_trainsafe.launch.task import device_of
from pytest_trainsafe.runs.progress.terminal import with_console
from pytest_trainsafe.sweep.case import Case

if TYPE_CHECKING:
    from pytest_trainsafe.runs.session import Session


#: The Group that a test received.
GROUP: pytest.StashKey[Group] = pytest.StashKey()


class Group:
    """Runs functions in groups of ranks: `run(function, *args)` returns one value per rank.

    `last` is the result of the last group.
    """

    def __init__(self, session: Session, case: Case | None) -> None:
        self._session = session
        self._case = case
        self.last: GroupResult | None = None

    def run(
        self, function: Any, *args: Any, world_size: int | None = None, **kwargs: Any
    ) -> list[Any]:
        """Runs an importable function in new ranks and returns their results in rank order.

        `world_size` defaults to that of the test's Point.  Arguments and results are plain data:
        numbers, strings, lists, dicts and tensors.  Raises GroupFailure unless all ranks return.
        """
        if world_size is None:
            if self._case is None:
                raise ArgumentError(
                    "torchrun_group.run needs world_size=..., or the marker "
                    "@pytest.mark.trainsafe(program, tp=[1, 2]) on the test"
                )
            world_size = self._case.point.world_size
        settings = self._case.settings if self._case is not None else self._session.settings
        device = device_of(settings.device, world_size)
        task = Task.of(function, *args, world_size=world_size, device=device, **kwargs)
        task = with_console(task, settings)
        workdir = self._session.folders.new("group")
        self.last = result = self._session.groups.launch(task, settings.timeout, workdir)
        raise_for_failure(result, point=None if self._case is None else self._case.point)
        return list(result.values)
