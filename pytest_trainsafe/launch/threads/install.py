"""Puts the backend of ranks that run in turn into torch, in place of gloo."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from pytest_trainsafe.compat.distributed import rank_worlds
from pytest_trainsafe.core.rank import current_rank
from pytest_trainsafe.core.schedule import Schedule
from pytest_trainsafe.launch.collectives import ledger
from pytest_trainsafe.launch.threads.group import TurnGroup
from pytest_trainsafe.launch.threads.mail import Mail
from pytest_trainsafe.launch.threads.meeting import Meetings
from pytest_trainsafe.launch.threads.refusals import refuse_backend
from pytest_trainsafe.launch.threads.store import TurnStore
from pytest_trainsafe.launch.threads.turns import Turns


def install(turns: Turns, schedule: Schedule) -> None:
    """Makes torch.distributed of this process connect the ranks of `turns`, until it ends."""
    meetings, mail = Meetings(turns, schedule), Mail(turns, schedule)

    def create(at: int, name: str, members: tuple[int, ...]) -> TurnGroup:
        return TurnGroup(meetings, mail, at, name, members)

    data: dict[str, bytes] = {}
    # torch's own reference to a store does not keep its Python methods.
    alive: list[TurnStore] = []

    def store() -> TurnStore:
        alive.append(TurnStore(turns, data))
        return alive[-1]

    rank_worlds.isolate_threads(True)
    rank_worlds.register(create, refuse_backend)
    ledger.wrap()
    ledger.connect_by(functools.partial(_joined, store=store))


def _joined(original: Callable[..., Any], store: Callable[[], TurnStore]) -> Callable[..., Any]:
    """`init_process_group` with a store of this process instead of one that connects to others."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def joined(*args: Any, **kwargs: Any) -> Any:
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError:
            return original(*args, **kwargs)  # raises torch's own error
        me = current_rank()
        if given.get("store") is None:
            given.pop("init_method", None)
            given["store"] = store()
            given["rank"] = me.rank if given.get("rank", -1) == -1 else given["rank"]
            if given.get("world_size", -1) == -1:
                given["world_size"] = me.world_size
        return original(**given)

    return joined
