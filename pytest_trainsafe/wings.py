"""What the judges of this package add to the engine, as import paths.

The engine names no judge.  It takes the parts of one kind from here, and imports them when it first
needs them.  A judge whose package is missing adds nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

#: The judges that `assert_trainsafe` asks, in their order: those of rungs, then by cost.
JUDGES = (
    "pytest_trainsafe.judges.compare.judge:CompareJudge",
    "pytest_trainsafe.judges.exact.judge:ProofJudge",
    "pytest_trainsafe.judges.replay.rng.judge:ReplayJudge",
    "pytest_trainsafe.judges.learn.judge:LearnJudge",
)

#: The checks of each judge that can be inconclusive, and what each then means.  A name that ends
#: in `:KIND` stands for one check of each kind of tensor.
CHECKS = (
    "pytest_trainsafe.judges.compare.checks:CHECKS",
    "pytest_trainsafe.judges.replay.checks:CHECKS",
    "pytest_trainsafe.judges.learn:CHECKS",
    "pytest_trainsafe.judges.metamorphic.checks:CHECKS",
    "pytest_trainsafe.judges.exact:CHECKS",
)

#: The modules that define event types of traces, and register them when they are imported.
EVENTS = (
    "pytest_trainsafe.judges.learn.events.file",
    "pytest_trainsafe.judges.replay.checkpoints.events",
    "pytest_trainsafe.judges.replay.schedules.events",
    "pytest_trainsafe.judges.exact.events",
)

#: The instruments of Runs, as classes (`record/instrument.py`).
INSTRUMENTS = (
    "pytest_trainsafe.judges.compare.instrument.changing:Changing",
    "pytest_trainsafe.judges.replay.rng.instrument.drawing:Drawing",
    "pytest_trainsafe.judges.replay.resume.instrument.checkpoints:Checkpoints",
    "pytest_trainsafe.judges.replay.checkpoints.instrument.restarting:Restarting",
    "pytest_trainsafe.judges.replay.determinism.instrument.repeating:Repeating",
    "pytest_trainsafe.judges.replay.resume.instrument.state:StateRecorder",
    "pytest_trainsafe.judges.replay.schedules.instrument:EarlyUses",
    "pytest_trainsafe.judges.learn.instrument.observing:Observing",
)

#: The rungs that judges bring with them, by name.
RUNGS = {"exact": "pytest_trainsafe.judges.exact.instrument.rungs:EXACT"}

#: Those that other rungs follow, and that nobody selects.
FOLLOWED_RUNGS = {"real": "pytest_trainsafe.judges.exact.instrument.rungs:REAL"}

#: The functions that write a section at the end of a run, by the setting that asks for it.  They
#: get the terminal reporter, the settings, and the reports of the marked tests.
SECTIONS = {
    "learn": "pytest_trainsafe.judges.learn.text:write_learned",
    "packs_report": "pytest_trainsafe.judges.learn.text:write_reported",
    "replay": "pytest_trainsafe.judges.replay.checkpoints.text:write_replays",
}

#: The classes that make some Runs in another way (`runs/substitute.py`), by the setting that asks
#: for it.
SUBSTITUTES = {"replay": "pytest_trainsafe.judges.replay.checkpoints.runs.replays:Replays"}


def present(paths: Mapping[str, str]) -> dict[str, str]:
    """The entries of a table of import paths, without those of judges that are missing."""
    return {name: path for name, path in paths.items() if _wing_exists(path)}


def objects(paths: Iterable[str]) -> list[Any]:
    """The modules or their members at import paths, without those of judges that are missing."""
    return [found for path in paths if (found := _found(path)) is not None]


def _wing_exists(path: str) -> bool:
    package, judges, wing, *_ = path.split(".")
    return find_spec(f"{package}.{judges}.{wing}") is not None


def _found(path: str) -> Any:
    place, _, name = path.partition(":")
    try:
        module = import_module(place)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{place}.".startswith(f"{error.name}."):
            raise
        return None
    return getattr(module, name) if name else module
