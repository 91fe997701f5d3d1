"""Inner pytest runs of these tests do not load the plugin of hypothesis."""

import pytest


@pytest.fixture(autouse=True)
def _without_hypothesis(without_hypothesis):
    """Applies to every test, also to those without the fixture `project`."""
