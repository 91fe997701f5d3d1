"""A small project with trainsafe tests, whose program needs no torch."""

import pytest

PROGRAM = """
from pytest_trainsafe.sweep import divides, requires

@requires(divides("heads", "tp"))
def train(ctx, heads=4, layers=2):
    raise AssertionError("nothing here is trained")
"""


@pytest.fixture(autouse=True)
def _without_hypothesis(pytester, monkeypatch):
    """Keep hypothesis out of inner runs, where it takes half a second of each.

    After `pytester`, which clears the variable for its own sake.
    """
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:hypothesispytest")


@pytest.fixture
def project(pytester, write_ini):
    """A pytester directory with `program.py` in reach."""
    pytester.makepyfile(program=PROGRAM)
    write_ini()
    return pytester


@pytest.fixture
def swept(project):
    """The project with one test over tp and cp, and one over layers."""
    project.makepyfile(
        test_swept="""
        import pytest

        @pytest.mark.trainsafe("program:train", tp=[1, 2], cp=[1, 2])
        def test_mesh(trainsafe):
            assert trainsafe.point.world_size in (1, 2, 3, 4)

        @pytest.mark.trainsafe("program:train", layers=[2, 8])
        def test_layers(trainsafe):
            assert trainsafe.point.world_size == 1
        """
    )
    return project


@pytest.fixture
def write_ini(pytester):
    """Write the project's ini file anew, with lines of the test's own."""

    def write(*lines):
        own = ["[pytest]", "pythonpath = .", "addopts = --strict-markers --strict-config"]
        return pytester.makeini("\n".join([*own, *lines]))

    return write
