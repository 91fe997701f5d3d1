"""A project whose fuzz tests need no ranks, with an example database of its own."""

from __future__ import annotations

from collections.abc import Iterator

import hypothesis
import pytest
from hypothesis.database import DirectoryBasedExampleDatabase

# Inner runs of pytest forget what they import: what stays would not know classes imported again.
import pytest_trainsafe.assertions  # noqa: F401


@pytest.fixture
def fuzzed(project) -> Iterator[pytest.Pytester]:
    """The project, in a profile of hypothesis that saves failing examples in `examples/`.

    `counted.py` counts in files, because hypothesis reports no examples.
    """
    before = hypothesis.settings.get_current_profile_name()
    hypothesis.settings.register_profile(
        "fuzzed",
        max_examples=25,
        derandomize=False,
        database=DirectoryBasedExampleDatabase(project.path / "examples"),
    )
    hypothesis.settings.load_profile("fuzzed")
    project.makepyfile(
        counted="""
        from pathlib import Path

        def ran(point, name="ran"):
            with open(Path(__file__).with_name(f"{name}.txt"), "a") as file:
                file.write(f"{point}\\n")
        """
    )
    yield project
    hypothesis.settings.load_profile(before)


@pytest.fixture
def ran(fuzzed):
    """What the examples of the last run wrote, line by line; the file is removed."""

    def read(name: str = "ran") -> list[str]:
        file = fuzzed.path / f"{name}.txt"
        lines: list[str] = file.read_text().splitlines() if file.exists() else []
        file.unlink(missing_ok=True)
        return lines

    return read
