"""A project with a test for each bug of a catalogue of the reference models, at one Point."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.reference_models.bugs import Bug
from pytest_trainsafe.reference_models.corpus import planted
from pytest_trainsafe.sweep.case import Case

TEST = """

@pytest.mark.trainsafe(
    {program}.train, **{axes}, args={arguments}, candidate_args={{"bug": {bug!r}}}
)
def test_{name}(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)
"""


def first_of(cases: Sequence[Case]) -> Case:
    """The Case that comes first in the order of the sweep."""
    return cases[0]


def write_corpus(
    folder: Path, bugs: Sequence[Bug], choose: Callable[[Sequence[Case]], Case] = first_of
) -> None:
    """Writes the tests of `bugs` into a folder: each at one of the Points that trigger it."""
    programs = ", ".join(sorted({bug.program for bug in bugs}))
    text = (
        "import pytest\n\nfrom pytest_trainsafe import assert_trainsafe\n"
        f"from pytest_trainsafe.reference_models import {programs}\n"
    )
    for bug in bugs:
        cases = [c for c in planted(bug, Settings(max_world_size=4)) if bug.triggers(c.point)]
        text += TEST.format(
            program=bug.program,
            axes={axis: [value] for axis, value in choose(cases).point},
            arguments=dict(bug.arguments),
            bug=bug.name,
            name=bug.name.replace("-", "_"),
        )
    (folder / "test_corpus.py").write_text(text)
    (folder / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
