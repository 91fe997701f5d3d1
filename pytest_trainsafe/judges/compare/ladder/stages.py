"""Which modules lie on which stage of a pipeline, and on which ranks, as a table."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable

from pytest_trainsafe.core.usage import name_ranks
from pytest_trainsafe.report.panels import State, Table
from pytest_trainsafe.report.sections import label
from pytest_trainsafe.trace.reader import Trace

#: The most characters of a list of modules.
_MOST = 300

_NUMBERED = re.compile(r"(.*?)(\d+)")


def stages(candidate: Trace, reference: Trace) -> Table | None:
    """The stages with their ranks and the modules that the others lack; None without a pipeline.

    A module stands for all that it contains if these lie on the same stages.  The last row has the
    modules of the reference that no stage has.
    """
    held = _held(candidate)
    if len(held) < 2:
        return None
    on: defaultdict[str, set[int]] = defaultdict(set)
    for stage, modules in held.items():
        for module in modules:
            on[module].add(stage)
    known = [name for rank in reference.ranks[:1] for name in rank.modules if name]
    order = [*dict.fromkeys((*known, *on))]
    rows, several = [], set[str]()
    for stage, modules in held.items():
        # A container that every stage has is cut: its parts say what this one has.
        own = {name for name in modules if len(on[name]) < len(held) or _is_leaf(name, on)}
        outermost = _outermost([name for name in order if name in own])
        several |= {name for name in outermost if len(on[name]) > 1}
        ranks = [each.rank for each in candidate.ranks if each.coordinates["pp"] == stage]
        rows.append((f"pp={stage}", name_ranks(ranks), label(_text(outermost), _MOST)))
    missing = [name for name in known if name not in on]
    states: list[State] = [""] * len(rows)
    if 0 < len(missing) < len(known) / 2:
        rows.append(("no stage", "", label(_text(_outermost(missing)), _MOST)))
        states.append("wrong")
    note = "The stages run in this order, and each sends its output to the next one."
    if several:
        note += f" On several stages: {_text([name for name in order if name in several])}."
    return Table(
        title="Stages of the pipeline",
        columns=("stage", "ranks", "modules"),
        rows=tuple(rows),
        states=tuple(states),
        note=label(note, 2_000),
    )


def _held(trace: Trace) -> dict[int, dict[str, None]]:
    """The modules of each stage, in the order of the stages."""
    held: defaultdict[int, dict[str, None]] = defaultdict(dict)
    for rank in trace.ranks:
        held[rank.coordinates["pp"]] |= dict.fromkeys(name for name in rank.modules if name)
    return dict(sorted(held.items()))


def _is_leaf(name: str, modules: Iterable[str]) -> bool:
    return not any(each.startswith(f"{name}.") for each in modules)


def _outermost(names: Iterable[str]) -> list[str]:
    """The names without those that lie in another one of them."""
    kept = {*names}
    inner = {name for name in kept for n, c in enumerate(name) if c == "." and name[:n] in kept}
    return [name for name in names if name not in inner]


def _text(names: Iterable[str]) -> str:
    """The names, in which neighbours that differ in their last number are joined."""
    runs: list[tuple[str, int, int]] = []
    for name in names:
        found = _NUMBERED.fullmatch(name)
        stem, number = (found[1], int(found[2])) if found is not None else (name, -1)
        if number > 0 and runs and (stem, number - 1) == (runs[-1][0], runs[-1][2]):
            runs[-1] = stem, runs[-1][1], number
        else:
            runs.append((stem, number, number))
    return ", ".join(
        stem if last < 0 else f"{stem}{first} to {last}" if last > first else f"{stem}{first}"
        for stem, first, last in runs
    )
