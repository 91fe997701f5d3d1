"""What a wing judges and what it does in the ranks import only its events from each other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tests.support.packaging.import_graph import import_graph

JUDGES = "pytest_trainsafe.judges."


def part(module: str) -> str:
    """The part of a wing that a module belongs to: instrument, events or judging."""
    names = module.split(".")
    return next((name for name in names if name in ("instrument", "events")), "judging")


def mixed(graph: dict[str, set[str]]) -> Iterator[str]:
    """The imports between modules of wings that join judging with what runs in the ranks."""
    for module, imported in graph.items():
        for other in sorted(imported):
            parts = part(module), part(other)
            wings = module.startswith(JUDGES) and other.startswith(JUDGES)
            if wings and parts[0] != parts[1] and parts[1] != "events":
                yield f"{module} imports {other}"


def test_judging_and_instruments_import_only_events_from_each_other(root: Path) -> None:
    graph = import_graph(root)

    wings = {name.partition(".instrument")[0] for name in graph if part(name) == "instrument"}
    assert len([wing for wing in wings if wing.startswith(JUDGES)]) == 8
    assert list(mixed(graph)) == []


def test_an_import_that_joins_judging_with_an_instrument_is_found() -> None:
    judge, events = f"{JUDGES}learn.judge", f"{JUDGES}learn.events.file"
    observer = f"{JUDGES}learn.instrument.observer"
    assert list(mixed({judge: {events}, observer: {events}, events: set()})) == []

    planted = {judge: {observer}, observer: {judge}, events: {judge, observer}}
    assert {*mixed(planted)} == {
        f"{judge} imports {observer}",
        f"{observer} imports {judge}",
        f"{events} imports {judge}",
        f"{events} imports {observer}",
    }
