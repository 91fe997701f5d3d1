"""What the judges of this package add to the engine, as import paths.

The engine names no judge.  It takes the parts of one kind from here, and imports them when it first
needs them.  A judge whose package is missing adds nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from types import ModuleType

#: The modules that define event types of traces, and register them when they are imported.
EVENTS = (
    "pytest_trainsafe.judges.learn.events.file",
    "pytest_trainsafe.judges.replay.rng.events.events",
    "pytest_trainsafe.judges.replay.checkpoints.events",
)


def modules(paths: Iterable[str]) -> list[ModuleType]:
    """The modules at import paths, without those of judges that are missing."""
    return [module for path in paths if (module := _module(path)) is not None]


def _module(path: str) -> ModuleType | None:
    try:
        return import_module(path)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{path}.".startswith(f"{error.name}."):
            raise
        return None
