"""Active context managers are recorded, and preconditions name them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import TracebackType

import torch
import torch.nn.functional as F
from torch.distributed.algorithms.join import Join
from torch.nn.attention import SDPBackend, sdpa_kernel

from pytest_trainsafe import observe
from pytest_trainsafe.judges.learn.conditions import Condition, Features, Mark, joined
from pytest_trainsafe.judges.learn.inference.deduce import deduce
from tests.support.learn.observing import Kept


@contextlib.contextmanager
def warm_up() -> Iterator[None]:
    yield


class Frozen:
    def __enter__(self) -> None:
        torch.nn.init.zeros_(torch.empty(1))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Nothing."""


def active(call_of: str = "torch.nn.functional.relu") -> list[set[str]]:
    """The context managers of each call."""
    with observe() as observation:
        F.relu(torch.ones(1))
        with warm_up(), Frozen():
            F.relu(torch.ones(1))
            with contextlib.suppress(ValueError), sdpa_kernel(SDPBackend.MATH):
                F.relu(torch.ones(1))
                raise ValueError
            F.relu(torch.ones(1))
        F.relu(torch.ones(1))
        with contextlib.ExitStack() as stack:
            stack.enter_context(warm_up())
            F.relu(torch.ones(1))
    return [
        {name.removeprefix("active.") for name in call.meta if name.startswith("active.")}
        for call in Kept.of(observation.table).called(call_of)
    ]


def test_a_call_has_the_context_managers_around_it() -> None:
    own = {"warm_up", "Frozen"}
    assert active() == [set(), own, {*own, "sdpa_kernel"}, own, set(), {"warm_up"}]


def test_the_context_managers_are_the_programs_again_afterwards() -> None:
    before = Frozen.__enter__, Join.__enter__, type(warm_up()).__enter__
    active()
    assert (Frozen.__enter__, Join.__enter__, type(warm_up()).__enter__) == before


def test_each_use_of_join_has_a_number() -> None:
    joins = [object.__new__(Join) for _ in range(2)]
    with observe() as observation:
        for each in joins:  # leaving one needs ranks
            Join.__enter__(each)
            F.relu(torch.ones(1))
    calls = Kept.of(observation.table).called("torch.nn.functional.relu")
    assert [(call.meta["join"], call.meta["active.Join"]) for call in calls] == [
        (1, True),
        (2, True),
    ]


def test_a_precondition_says_in_which_context_a_rule_holds_or_not() -> None:
    outside: Features = {"phase": "backward"}
    inside: Features = {"phase": "backward", "active.no_sync": True}
    for passing, failing, value in ((outside, inside, False), (inside, outside, True)):
        found = deduce([(passing, 4, 0), (failing, 0, 4)], False, lambda field: False)
        assert found is not None
        assert found.precondition.any_of == ((Condition("constant", "active.no_sync", value),),)
        assert found.precondition.holds(passing)
        assert not found.precondition.holds(failing)


def test_ranks_in_different_contexts_differ() -> None:
    found = joined({"active.no_sync": True, "phase": ""}, {"phase": ""})
    assert found == {"active.no_sync": Mark.DIFFERENT, "phase": ""}


def test_a_compiled_region_has_its_context_managers_without_a_break() -> None:
    @torch.compile(backend="eager", fullgraph=True)
    def program(rows: torch.Tensor) -> torch.Tensor:
        with warm_up():
            return rows + 1

    rows = torch.zeros(2)
    with observe():
        assert program(rows).tolist() == [1.0, 1.0]
