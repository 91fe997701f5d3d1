"""Inner runs of these tests go without hypothesis."""

import pytest


@pytest.fixture(autouse=True)
def _without_hypothesis(without_hypothesis):
    """In every test, also in those that have no `project`."""
