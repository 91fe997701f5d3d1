"""What the judges of this package add to the engine, as import paths.

The engine names no judge.  It takes the parts of one kind from here, and imports them when it first
needs them.  A judge whose package is missing adds nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from types import ModuleType
from typing import Any

#: The judges that `assert_trainsafe` asks, in their order: the comparison, then by cost.
JUDGES = (
    "pytest_trainsafe.judges.compare.judge:CompareJudge",
    "pytest_trainsafe.judges.replay.rng.judge:ReplayJudge",
    "pytest_trainsafe.judges.learn.judge:LearnJudge",
)

#: The modules that define event types of traces, and register them when they are imported.
EVENTS = (
    "pytest_trainsafe.judges.learn.events.file",
    "pytest_trainsafe.judges.replay.checkpoints.events",
)

#: The instruments of Runs, as classes (`record/instrument.py`).
INSTRUMENTS = (
    "pytest_trainsafe.judges.compare.instrument.changing:Changing",
    "pytest_trainsafe.judges.replay.rng.instrument.drawing:Drawing",
    "pytest_trainsafe.judges.replay.resume.instrument.checkpoints:Checkpoints",
    "pytest_trainsafe.judges.replay.checkpoints.instrument.restarting:Restarting",
    "pytest_trainsafe.judges.replay.determinism.instrument.repeating:Repeating",
    "pytest_trainsafe.judges.replay.resume.instrument.state:StateRecorder",
    "pytest_trainsafe.judges.learn.instrument.observing:Observing",
)

#: The functions that write a section at the end of a run, by the setting that asks for it.  They
#: get the terminal reporter, the settings, and the reports of the marked tests.
SECTIONS = {
    "learn": "pytest_trainsafe.judges.learn.text:write_learned",
    "replay": "pytest_trainsafe.judges.replay.checkpoints.text:write_replays",
}

#: The classes that make some Runs in another way (`runs/substitute.py`), by the setting that asks
#: for it.
SUBSTITUTES = {"replay": "pytest_trainsafe.judges.replay.checkpoints.runs.replays:Replays"}


def modules(paths: Iterable[str]) -> list[ModuleType]:
    """The modules at import paths, without those of judges that are missing."""
    return [module for path in paths if (module := _module(path)) is not None]


def function(path: str) -> Callable[..., Any]:
    """The function at an import path; one of a judge that is missing does nothing."""
    place, _, name = path.partition(":")
    module = _module(place)
    found: Callable[..., Any] = _nothing if module is None else getattr(module, name)
    return found


def objects(paths: Iterable[str]) -> list[Any]:
    """The objects at import paths, without those of judges that are missing."""
    found = [(path, _module(path.partition(":")[0])) for path in paths]
    return [getattr(module, path.partition(":")[2]) for path, module in found if module is not None]


def _nothing(*args: object) -> None:
    pass


def _module(path: str) -> ModuleType | None:
    try:
        return import_module(path)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{path}.".startswith(f"{error.name}."):
            raise
        return None
