"""A snapshot of what a process inherits from the process that starts it.

A Run is launched in a thread, possibly after its test has changed the environment or the working
directory.  So the snapshot is taken when the Run is requested.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

#: pytest sets it for every test and phase, so comparing it would make all snapshots differ.
_TEST = "PYTEST_CURRENT_TEST"


@dataclass(frozen=True, slots=True, repr=False)
class LaunchEnvironment:
    """Environment, working directory and module search path (with absolute folders).

    Two snapshots are equal if a program could see no difference except the current test's name.
    """

    variables: frozenset[tuple[str, str]]
    cwd: str
    sys_path: tuple[str, ...]
    test: str | None = field(compare=False)

    @classmethod
    def now(cls) -> LaunchEnvironment:
        """The snapshot of this process, taken now."""
        environ = dict(os.environ)
        test = environ.pop(_TEST, None)
        cwd = os.getcwd()
        path = tuple(_absolute(entry, cwd) for entry in sys.path)
        return cls(frozenset(environ.items()), cwd, path, test)

    @property
    def environ(self) -> Mapping[str, str]:
        """The environment, as a mapping."""
        current_test = {} if self.test is None else {_TEST: self.test}
        return dict(self.variables) | current_test


def _absolute(entry: str, cwd: str) -> str:
    """An entry of the search path as an absolute path; unchanged if no such path exists.

    Import hooks may use entries that are not paths.
    """
    found = os.path.join(cwd, entry) if entry else cwd
    return found if os.path.exists(found) else entry
