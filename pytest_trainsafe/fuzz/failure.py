"""The exceptions of a failed fuzz test."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_trainsafe.assertions import TrainsafeFailure
from pytest_trainsafe.core.finding import Finding
from pytest_trainsafe.sweep.search.interaction import Interaction


class FuzzFailure(TrainsafeFailure):
    """A fuzz test failed at some Point.

    `interaction` has the smallest failing Point and the axes that the failure needs.  `findings`
    are the judges' findings at that Point.  `examples` is the number of Points that had been run
    when the failure occurred.  `others` has a FuzzFailure for each further failure of the test that
    differs from this one, in the order in which they were found.
    """

    def __init__(
        self,
        report: str,
        findings: Sequence[Finding],
        interaction: Interaction,
        examples: int,
        others: Sequence[FuzzFailure] = (),
        line: str = "",
    ) -> None:
        super().__init__(report, findings, line)
        self.interaction = interaction
        self.examples = examples
        self.others = tuple(others)


class FuzzInconclusive(TrainsafeFailure):
    """No Point of a fuzz test failed, but some have no verdict, so the test has not passed."""


class FlakyProgram(TrainsafeFailure):
    """A fuzz test failed, but its program is not reproducible.

    The failure therefore says nothing about parallelism.
    """
