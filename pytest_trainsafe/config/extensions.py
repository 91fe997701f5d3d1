"""Import paths of adapters, judges, relations, launchers and rungs, which projects add by hooks."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
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
    given = config.hook.pytest_trainsafe_launchers(config=config)
    return _named("launcher", given, '{"slurm": "our_tests.slurm:SlurmLauncher"}', LAUNCHERS)


def read_rungs(config: pytest.Config) -> tuple[tuple[str, str], ...]:
    """The rungs of the project and its plugins, by name and import path."""
    given = config.hook.pytest_trainsafe_rungs(config=config)
    if not given:
        return ()
    from pytest_trainsafe.core.rungs.table import BUILT_IN_RUNGS

    taken = (*BUILT_IN_RUNGS, "auto")
    return _named("rung", given, '{"mod8191": "our_tests.residues:MOD_8191"}', taken)


def _named(
    what: str, returned: Sequence[object], example: str, taken: Collection[str]
) -> tuple[tuple[str, str], ...]:
    """The import paths by name that the hook `pytest_trainsafe_{what}s` returned.

    `taken` are names that are not free, and `example` is what an implementation may return.
    """
    hook, found = f"pytest_trainsafe_{what}s", dict[str, str]()
    path_of_example = example.rpartition('"')[0].rpartition('"')[2]
    for given in returned:
        if not isinstance(given, Mapping):
            raise pytest.UsageError(
                f"{hook} returned {shown(given)}; it must return a dict such as {example}"
            )
        for name, path in given.items():
            if not isinstance(name, str) or not re.fullmatch(r"[a-z][a-z0-9_-]{0,39}", name):
                raise pytest.UsageError(
                    f"{hook} returned the name {shown(name)}; the name of a {what} starts with a "
                    "letter and has at most 40 characters, which are a-z, 0-9, - and _"
                )
            if not _is_import_path(path):
                raise pytest.UsageError(
                    f"{hook} returned {shown(path)} for {name!r}; it must return the import path "
                    f'of a {what}, such as "{path_of_example}"'
                )
            if name in taken or found.get(name, path) != path:
                raise pytest.UsageError(
                    f"{hook} returned {name!r}, which is already the name of a {what}; choose "
                    "another name"
                )
            found[name] = path
    return tuple(found.items())


def _is_import_path(path: object) -> bool:
    module, colon, name = str(path).partition(":")
    return bool(
        colon and name.isidentifier() and all(part.isidentifier() for part in module.split("."))
    )
