"""Runs that are made in another way than by training from the start, if a setting asks for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from pytest_trainsafe import wings
from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.trace.reader import Trace
from pytest_trainsafe.trace.run_spec import RunSpec

#: Makes a Run: gets the folder of its trace, and a function that records a RunSpec there.
Making = Callable[[Path, Callable[[RunSpec], None]], Trace]


class Substitute(Protocol):
    """Makes some Runs of a session."""

    def instead(self, spec: RunSpec) -> Making | None:
        """What makes the Run of `spec`; None if it is made as usual."""


def substitute_of(settings: Settings) -> Substitute | None:
    """The substitute for which a setting asks; None for none."""
    for setting, path in wings.SUBSTITUTES.items():
        if getattr(settings, setting):
            for kind in wings.objects([path]):
                made: Substitute = kind(settings)
                return made
    return None
