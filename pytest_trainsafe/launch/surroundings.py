"""What a process takes over from the one that starts it, as it was at one moment.

A Run is launched in a thread, perhaps after the test that it belongs to has gone on.  What its
ranks take over is noted when the Run is asked for.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

#: pytest sets it for every test and phase: what is told apart by it would never be the same.
_TEST = "PYTEST_CURRENT_TEST"


@dataclass(frozen=True, slots=True, repr=False)
class Surroundings:
    """Environment, working directory and module search path, whose folders are absolute.

    Equal where a program could see no difference, but for the name of the current test.
    """

    variables: frozenset[tuple[str, str]]
    cwd: str
    sys_path: tuple[str, ...]
    test: str | None = field(compare=False)

    @classmethod
    def now(cls) -> Surroundings:
        """Those of this process."""
        environ = dict(os.environ)
        test = environ.pop(_TEST, None)
        cwd = os.getcwd()
        path = tuple(_absolute(entry, cwd) for entry in sys.path)
        return cls(frozenset(environ.items()), cwd, path, test)

    @property
    def environ(self) -> Mapping[str, str]:
        """The environment, as a mapping."""
        told = {} if self.test is None else {_TEST: self.test}
        return dict(self.variables) | told


def _absolute(entry: str, cwd: str) -> str:
    """An entry of the search path that does not hang on the working directory; hooks stay."""
    found = os.path.join(cwd, entry) if entry else cwd
    return found if os.path.exists(found) else entry
