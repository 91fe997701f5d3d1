"""Hooks that a project or another plugin may implement, for example in a conftest.py.

An implementation may declare any subset of a hook's arguments; later releases may add arguments.
If pytest-trainsafe may not be installed, mark the implementation
`@pytest.hookimpl(optionalhook=True)`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_trainsafe.core.point import Point


@pytest.hookspec(firstresult=True)
def pytest_trainsafe_valid_point(
    point: Point, arguments: Mapping[str, object], config: pytest.Config
) -> str | None:
    """Returns why a Point of a sweep cannot run, or None if it can.

    Called at collection, for a Point that the built-in checks and the program's own checks allow.
    The first reason that an implementation returns is the reason of the skip.  `arguments` are the
    program's arguments, including defaults.  The result must not depend on the machine or the time,
    because all pytest-xdist workers must collect the same tests.

        def pytest_trainsafe_valid_point(point, arguments):
            if point.size("cp") > 1 and arguments.get("attention") == "local":
                return "local attention has no context parallel version"
    """


@pytest.hookspec
def pytest_trainsafe_adapters(config: pytest.Config) -> Sequence[str]:  # type: ignore[empty-body]
    """Returns import paths of adapters for frameworks that the package does not support.

    Called when pytest is configured.  Each path names a subclass of
    `pytest_trainsafe.record.adapter.Adapter`, which ranks instantiate without arguments.  These
    adapters take precedence over those of the package.

        def pytest_trainsafe_adapters(config):
            return ["our_tests.adapter:OurFramework"]
    """


@pytest.hookspec
def pytest_trainsafe_rungs(config: pytest.Config) -> Mapping[str, str]:  # type: ignore[empty-body]
    """Returns further rungs of the precision ladder by name; `--trainsafe-dtype NAME` selects one.

    Called when pytest is configured.  Each value is the import path of a
    `pytest_trainsafe.core.rungs.rung.Rung` with this name, which pytest's process and every rank
    import when they first need it.

        def pytest_trainsafe_rungs(config):
            return {"mod8191": "our_tests.residues:MOD_8191"}
    """


@pytest.hookspec
def pytest_trainsafe_judges(config: pytest.Config) -> Sequence[str]:  # type: ignore[empty-body]
    """Returns import paths of judges that `assert_trainsafe` uses in addition to the package's own.

    Called when pytest is configured.  Each path names a class that implements
    `pytest_trainsafe.judges.contract.Judge` and is instantiated without arguments.

        def pytest_trainsafe_judges(config):
            return ["our_tests.judges:LossFalls"]
    """


@pytest.hookspec
def pytest_trainsafe_relations(config: pytest.Config) -> Sequence[str]:  # type: ignore[empty-body]
    """Returns import paths of relations for learning invariants, in addition to the package's own.

    A relation is a kind of invariant, such as "an argument is constant".  Called when pytest is
    configured.
    Each path names a class that implements `pytest_trainsafe.judges.learn.relation.Relation` and is
    instantiated without arguments.

        def pytest_trainsafe_relations(config):
            return ["our_tests.relations:LossFalls"]
    """


@pytest.hookspec
def pytest_trainsafe_launchers(config: pytest.Config) -> Mapping[str, str]:  # type: ignore[empty-body]
    """Returns further launchers by name; a user selects one with `--trainsafe-launcher NAME`.

    Called when pytest is configured.  Each value is the import path of a class or a function that
    takes a `pytest_trainsafe.launch.LaunchSetup` and returns a `pytest_trainsafe.launch.Launcher`.
    Each pytest process imports the path when it starts its first group of ranks.  If a launcher has
    a method `close`, this method is called at the end of the run.

        def pytest_trainsafe_launchers(config):
            return {"slurm": "our_tests.slurm:SlurmLauncher"}
    """
