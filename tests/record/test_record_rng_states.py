"""States read from the memory of generators equal those of get_state and getstate."""

from __future__ import annotations

import random

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from pytest_trainsafe.judges.replay.rng.instrument import cpu_memory
from pytest_trainsafe.judges.replay.rng.instrument.ledger import RngLedger
from pytest_trainsafe.record.clock import Clock
from pytest_trainsafe.trace.rng.events import DrawEvent
from pytest_trainsafe.trace.rng.states import (
    PythonState,
    python_state,
    torch_state,
)


class Events(list):
    """Collects the events of the ledger in a list."""

    def add(self, event):
        self.append(event)

    @property
    def draws(self):
        return [event for event in self if isinstance(event, DrawEvent)]


def recorded(draw, *modules):
    """The recorded draws of a function that calls the watched modules."""
    events = Events()
    ledger = RngLedger(events, Clock())
    with ledger.recording():
        ledger.watch({module: f"m{n}" for n, module in enumerate(modules)}, modules)
        draw()
    return events.draws


def test_the_state_in_the_memory_of_a_cpu_generator_equals_get_state():
    generator = torch.Generator().manual_seed(1)
    memory = cpu_memory.memory_of(generator)
    assert memory is not None
    drawing = [
        lambda: torch.empty(9).uniform_(generator=generator),
        lambda: torch.empty(1).normal_(generator=generator),  # caches a second number
        lambda: torch.empty(1).normal_(generator=generator),  # uses the cached number
        lambda: torch.empty(1300).uniform_(generator=generator),
        lambda: generator.manual_seed(2**63),
        lambda: generator.set_state(torch.Generator().manual_seed(3).get_state()),
    ]
    for draw in drawing * 2:
        draw()
        state, read = torch_state(generator), memory.read()
        assert (read is None) == (state.count(".") == 2)
        if read is not None:
            assert cpu_memory.text(read) == state
            assert torch.equal(cpu_memory.whole_state(memory.copy()), generator.get_state())


@pytest.mark.parametrize("aside", [False, True], ids=["", "with-a-number-aside"])
def test_memory_at_a_wrong_offset_is_not_read_as_generator_state(monkeypatch, aside):
    generator = torch.Generator().manual_seed(1)
    torch.empty(1).normal_(generator=generator) if aside else None
    layout = cpu_memory._layout()
    assert layout is not None
    assert cpu_memory.memory_of(generator) is not None

    wrong = layout._replace(engine=layout.engine + 4, aside=(0, 0))
    monkeypatch.setattr(cpu_memory, "_layout", lambda: wrong)

    assert cpu_memory.memory_of(generator) is None


def test_no_memory_layout_is_returned_if_the_search_does_not_find_the_state(monkeypatch):
    monkeypatch.setattr(cpu_memory, "_SEARCHED", 8)
    assert cpu_memory._layout.__wrapped__() is None


def test_the_state_in_the_memory_of_pythons_generator_equals_getstate():
    before, reader = random.getstate(), PythonState()
    try:
        drawing = [random.random, lambda: random.gauss(0, 1), lambda: random.seed(4)]
        for draw in [*drawing, lambda: random.setstate(before)] * 2:
            draw()
            assert reader.read() == reader.read() == python_state()
    finally:
        random.setstate(before)


@pytest.mark.parametrize("readable", [True, False], ids=["memory", "get_state"])
def test_the_ledger_is_the_same_with_and_without_readable_generator_memory(monkeypatch, readable):
    if not readable:
        monkeypatch.setattr(
            "pytest_trainsafe.judges.replay.rng.instrument.unseen.memory_of", lambda _: None
        )
    drop, x = nn.Dropout(0.5), torch.ones(3, 5)

    def draw():
        torch.manual_seed(7)
        drop(x)
        torch.empty(1).normal_()
        drop(x)

    first, normal, last = recorded(draw, drop)

    fresh = torch.Generator().manual_seed(7)
    assert first.before == torch_state(fresh)
    torch.empty(3, 5).bernoulli_(0.5, generator=fresh)
    assert (first.after, normal.before) == (torch_state(fresh), torch_state(fresh))
    torch.empty(1).normal_(generator=fresh)
    assert (normal.after, last.before) == (torch_state(fresh), torch_state(fresh))
    assert [draw.operator for draw in (first, normal, last)] == [
        "bernoulli_.float",
        "normal_",
        "bernoulli_.float",
    ]


@pytest.mark.parametrize(
    "dropout",
    [
        pytest.param(lambda x: F.dropout(x, 0.5), id="function"),
        pytest.param(lambda x: torch.dropout(x, 0.5, True), id="operator"),
        pytest.param(lambda x: F.dropout(x, 0.5, inplace=True), id="in-place"),
    ],
)
def test_every_dropout_function_draws_unchanged_numbers_and_is_recorded_alike(dropout):
    found = []

    def draw():
        torch.manual_seed(7)
        found.append(dropout(torch.ones(4, 6)))

    draw()
    [event] = recorded(draw)

    assert torch.equal(found[0], found[1])
    assert (event.operator, event.shape, event.seed) == ("bernoulli_.float", (4, 6), "7")


def test_a_dropout_that_is_the_last_recomputed_operation_is_recorded():
    drop, linear = nn.Dropout(0.5), nn.Linear(4, 4)

    def draw():
        x = linear(torch.ones(2, 4))
        checkpoint(drop, x, use_reentrant=False).sum().backward()

    forward, again = recorded(draw, drop)

    assert (forward.phase, again.phase) == ("forward", "recomputation")
    assert forward.before == again.before


def test_the_dropout_function_of_torch_is_restored():
    before = vars(torch._VF).get("dropout")
    recorded(lambda: None)
    assert vars(torch._VF).get("dropout") is before


def test_dropout_functions_under_vmap_are_recorded_alike():
    def under_vmap(dropout):
        def draw():
            torch.manual_seed(7)
            torch.func.vmap(dropout, randomness="different")(torch.ones(3, 4))

        [event] = recorded(draw)
        return event.operator, event.shape, event.before, event.after

    function = under_vmap(lambda x: F.dropout(x, 0.5))

    assert function == under_vmap(lambda x: torch.dropout(x, 0.5, True))


def test_a_compiled_dropout_stays_in_one_graph_and_is_recorded():
    drop, found = nn.Dropout(0.5), []
    compiled = torch.compile(drop, backend="eager", fullgraph=True)

    def draw():
        torch.manual_seed(7)
        found.append(compiled(torch.ones(4, 6)))

    draw()
    [event] = recorded(draw, drop)

    assert torch.equal(found[0], found[1])
    assert (event.operator, event.shape) == ("bernoulli_.float", (4, 6))
