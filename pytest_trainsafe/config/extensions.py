"""Import paths of adapters, judges, relations and launchers, which projects add by hooks."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from pytest_trainsafe.config.settings import LAUNCHERS
from pytest_trainsafe.core.usage import shown


def import_paths(what: str, given: Sequence[Any]) -> tuple[str, ...]:
    """The import paths that implementations of the hook `pytest_trainsafe_{what}` returned."""
    paths = [path for each in given for path in ([each] if isinstance(each, str) else each)]
    for path in paths:
        if not _is_import_path(path):
            raise pytest.UsageError(
                f"pytest_trainsafe_{what} returned {path!r}; it must return import paths of "
                "classes, "
                'such as "our_tests.adapter:OurFramework"'
            )
    return tuple(paths)


def read_launchers(config: pytest.Config) -> tuple[tuple[str, str], ...]:
    """The launchers of the project and its plugins, by name and import path."""
    hook = "pytest_trainsafe_launchers"
    found: dict[str, str] = {}
    for given in config.hook.pytest_trainsafe_launchers(config=config):
        if not isinstance(given, Mapping):
            raise pytest.UsageError(
                f'{hook} returned {shown(given)}; it must return a dict such as {{"slurm": '
                '"our_tests.slurm:SlurmLauncher"}'
            )
        for name, path in given.items():
            if not isinstance(name, str) or not re.fullmatch(r"[a-z][a-z0-9_-]{0,39}", name):
                raise pytest.UsageError(
                    f"{hook} returned the name {shown(name)}; the name of a launcher starts with a "
                    "letter and has at most 40 characters, which are a-z, 0-9, - and _"
                )
            if not _is_import_path(path):
                raise pytest.UsageError(
                    f"{hook} returned {shown(path)} for {name!r}; it must return the import path "
                    "of "
                    'a class, such as "our_tests.slurm:SlurmLauncher"'
                )
            if name in LAUNCHERS or found.get(name, path) != path:
                raise pytest.UsageError(
                    f"{hook} returned {name!r}, which is already the name of a launcher; choose "
                    "another name"
                )
            found[name] = path
    return tuple(found.items())


def _is_import_path(path: object) -> bool:
    module, colon, name = str(path).partition(":")
    return bool(
        colon and name.isidentifier() and all(part.isidentifier() for part in module.split("."))
    )
