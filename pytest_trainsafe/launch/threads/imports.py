"""Notes what modules contain when they have been imported, before a rank changes it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType


class ImportNotes(MetaPathFinder):
    """Calls `imported` with each of the modules `names` that is imported from now on.

    `names` is asked for each import, so it may grow.
    """

    def __init__(
        self, names: Callable[[], Collection[str]], imported: Callable[[ModuleType], None]
    ) -> None:
        self._names, self._imported = names, imported
        #: The noted modules whose import has begun and not ended.
        self.unfinished: set[str] = set()
        sys.meta_path.insert(0, self)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module's own spec, with a loader that calls `imported`; None for other modules."""
        if name not in self._names():
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Noting(spec.loader, self)
        return spec

    def execute(self, loader: Loader, module: ModuleType) -> None:
        """Runs a module as its original loader does, and notes it."""
        self.unfinished.add(module.__name__)
        try:
            loader.exec_module(module)
        finally:
            self.unfinished.discard(module.__name__)
        self._imported(module)


class _Noting(Loader):
    def __init__(self, loader: Loader, notes: ImportNotes) -> None:
        self._loader, self._notes = loader, notes

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Creates the module as the original loader does."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Runs the module, and notes it."""
        self._notes.execute(self._loader, module)
