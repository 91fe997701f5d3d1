"""What one rank calls instead of its random operators; `random_operators` registers the kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pytest_trainsafe.core.rank.state import keep_per_rank

#: Called instead of an operator, with its name, a callable that runs the operator itself, the
#: dispatch keys that this callable takes first, and the operator's arguments.
Drawing = Callable[[str, Callable[..., Any], Any, tuple[Any, ...], dict[str, Any]], Any]

#: Returns what runs instead of a callable that runs a random operator, from the operator and the
#: callable.
Through = Callable[[Any, Callable[..., Any]], Callable[..., Any]]


class Interception:
    """The two callables of `random_operators.intercepted`, of one rank."""

    def __init__(self, drawing: Drawing, through: Through | None) -> None:
        self.drawing, self.through = drawing, through
        self._runs: dict[Any, Callable[..., Any]] = {}

    def run(self, operator: Any, redispatch: Callable[..., Any]) -> Callable[..., Any]:
        """The callable that runs an operator of this rank."""
        found = self._runs.get(operator)
        if found is None:
            found = redispatch if self.through is None else self.through(operator, redispatch)
            self._runs[operator] = found
        return found

    @contextmanager
    def active(self) -> Iterator[None]:
        """Makes this the interception of this rank."""
        global _active
        before, _active = _active, self
        try:
            yield
        finally:
            _active = before


_active: Interception | None = None
keep_per_rank(__name__, "_active")


def active() -> Interception | None:
    """The interception of this rank; None while its operators are not intercepted."""
    return _active
