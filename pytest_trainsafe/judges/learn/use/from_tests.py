"""Learns a pack from the healthy tests of a pytest run, once all of them have passed or failed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_trainsafe.judges.learn.check.offline import check
from pytest_trainsafe.judges.learn.inference.jobs import Progress
from pytest_trainsafe.judges.learn.inference.learn import learn
from pytest_trainsafe.judges.learn.packs.pack import Pack, pack_of, write_pack
from pytest_trainsafe.judges.learn.packs.read import read_pack
from pytest_trainsafe.judges.learn.packs.update import Update, update
from pytest_trainsafe.judges.learn.quote import quote
from pytest_trainsafe.judges.learn.registry import relations
from pytest_trainsafe.judges.learn.relation import Relation
from pytest_trainsafe.judges.learn.run import ObservedRun
from pytest_trainsafe.judges.learn.use.deploy import pack_path


@dataclass(frozen=True, slots=True)
class LearnedPack:
    """The pack that a pytest run learned: its file, and what changed in it.

    `runs`, `programs` and `records` say how much it was learned from, and `relations` has the
    relations that its invariants name.
    """

    path: Path
    update: Update
    runs: int
    programs: int
    records: int
    relations: Mapping[str, Relation]


def learn_pack(
    name: str,
    root: Path,
    runs: Sequence[ObservedRun],
    own: Sequence[str] = (),
    progress: Progress | None = None,
) -> LearnedPack:
    """Learn invariants from the runs and write them to invariants/NAME.pack below `root`.

    If the pack exists, its invariants that the runs do not show stay in it, and
    `Update.unsupported` lists them.  Raises LearnError if nothing can be learned from the runs, and
    PackError if the existing pack is damaged.
    """
    known = relations(own)
    path = pack_path(name, root)
    before = read_pack(path, known) if path.exists() else Pack(name, ())
    learned = learn(runs, own=own, progress=progress)
    changes = update(before, with_examples(pack_of(name, learned), runs, known))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_pack(changes.pack, path, known)
    programs, records = {run.program for run in runs}, sum(run.records for run in runs)
    return LearnedPack(path, changes, len(runs), len(programs), records, known)


def with_examples(
    pack: Pack, runs: Sequence[ObservedRun], relations: Mapping[str, Relation]
) -> Pack:
    """The pack, in which each invariant has an example from one of the runs."""
    found: dict[str, str] = {}
    for run in runs:
        missing = tuple(each for each in pack.invariants if each.id not in found)
        if missing:
            part = replace(pack, invariants=missing)
            for name, record in check(run, [part], relations, min_confidence=0.0).kept.items():
                found[name] = quote(record)
    every = (replace(each, example=found.get(each.id, "")) for each in pack.invariants)
    return replace(pack, invariants=tuple(every))
