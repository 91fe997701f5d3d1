"""The faults that localisation finds in a rung of synthetic traces, and their report."""

from __future__ import annotations

import dataclasses

import msgspec

from pytest_trainsafe.judges.compare.compare import compare
from pytest_trainsafe.judges.compare.explain.common_factor import with_factor
from pytest_trainsafe.judges.compare.fault.located import Located
from pytest_trainsafe.judges.compare.localize.blame import Fault, Stages, blame
from pytest_trainsafe.judges.compare.localize.description import located
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.sweep.program import Program
from pytest_trainsafe.trace.facts import Caller
from pytest_trainsafe.trace.reader import RankTrace, Trace
from pytest_trainsafe.trace.schema import ModuleEvent

PROGRAM = Program(path="package.fit:train")


def blamed(rung: RungTraces) -> list[Fault]:
    """The faults of a rung, as if it had been rewritten."""
    return blame(rung, with_factor(rung, compare(rung)), {}, Stages(rung.candidate))


def located_faults(rung: RungTraces) -> Located:
    """The report on the faults of a rung."""
    comparison = with_factor(rung, compare(rung))
    faults = blame(rung, comparison, {}, Stages(rung.candidate))
    assert faults
    return located(faults, comparison, rung, PROGRAM, "")


def text_of(found: Located) -> str:
    """The rows of a Located as one text."""
    return " ".join(f"{label} {text}" for label, text in found.rows)


def noting(rung: RungTraces, *facts: msgspec.Struct) -> RungTraces:
    """The rung as if the candidate had also recorded `facts`."""
    return dataclasses.replace(rung, candidate=_noting(rung.candidate, facts))


def calling(rung: RungTraces, **callers: str) -> RungTraces:
    """The rung as if these modules called its modules: `calling(rung, fc1="block")`."""
    facts = tuple(Caller(name, by) for name, by in callers.items())
    return dataclasses.replace(
        rung,
        candidate=_noting(rung.candidate, facts),
        reference=_noting(rung.reference, facts),
    )


def _noting(trace: Trace, facts: tuple[msgspec.Struct, ...]) -> Trace:
    ranks = [dataclasses.replace(rank, facts=with_facts(rank, *facts)) for rank in trace.ranks]
    return Trace(trace.path, trace.manifest, ranks)


def with_facts(rank: RankTrace, *facts: msgspec.Struct) -> dict[type, list[msgspec.Struct]]:
    """The facts of a rank, and `facts`."""
    found = {kind: list(events) for kind, events in rank.facts.items()}
    for fact in facts:
        found.setdefault(type(fact), []).append(fact)
    return found


def described(rung: RungTraces, *modules: ModuleEvent) -> RungTraces:
    """The rung with `modules` as the descriptions of these modules of the candidate."""
    trace = rung.candidate
    ranks = [
        dataclasses.replace(rank, modules={**rank.modules, **{m.module: m for m in modules}})
        for rank in trace.ranks
    ]
    return dataclasses.replace(rung, candidate=Trace(trace.path, trace.manifest, ranks))
