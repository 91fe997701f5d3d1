"""Hooks that a project or another plugin may implement, in a conftest.py for example.

Every hook is called with keywords and may gain arguments: implement the ones you need.
Where pytest-trainsafe may be missing, mark the implementation
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
    """Say why a Point of a sweep cannot run, or None where it can.

    Asked at collection, after the built-in rules and the program's own; the first reason wins
    and is the skip's.  `arguments` are the program's, defaults included.  The answer must
    depend on neither the machine nor the time: every pytest-xdist worker has to give the same.

        def pytest_trainsafe_valid_point(point, arguments):
            if point.size("cp") > 1 and arguments.get("attention") == "local":
                return "local attention has no context parallel version"
    """


@pytest.hookspec
def pytest_trainsafe_adapters(config: pytest.Config) -> Sequence[str]:  # type: ignore[empty-body]
    """Import paths of framework adapters, for what the package does not know.

    Asked when pytest is configured.  Each path names a class, derived from
    `pytest_trainsafe.record.adapter.Adapter`, which ranks make without arguments.  A project's
    own adapters are asked before those of the package.

        def pytest_trainsafe_adapters(config):
            return ["our_tests.adapter:OurFramework"]
    """


@pytest.hookspec
def pytest_trainsafe_judges(config: pytest.Config) -> Sequence[str]:  # type: ignore[empty-body]
    """Import paths of judges that `assert_trainsafe` asks beside those of the package.

    Asked when pytest is configured.  Each path names a class with the methods of
    `pytest_trainsafe.judge.contract.Judge`, which is made without arguments.

        def pytest_trainsafe_judges(config):
            return ["our_tests.judges:LossFalls"]
    """


@pytest.hookspec
def pytest_trainsafe_launchers(config: pytest.Config) -> Mapping[str, str]:  # type: ignore[empty-body]
    """Launchers by name: other ways to start ranks, chosen by `--trainsafe-launcher NAME`.

    Asked when pytest is configured.  Each value is the import path of a class or a function that
    takes a `pytest_trainsafe.launch.LaunchSetup` and makes a `pytest_trainsafe.launch.Launcher`.
    It is imported when a group is first to be started, in each pytest process.  A launcher that
    has a method `close` is closed at the end of the run.

        def pytest_trainsafe_launchers(config):
            return {"slurm": "our_tests.slurm:SlurmLauncher"}
    """
