"""Loads the judges of a test by import path: those of the package, and those of the project.

A project adds judges with the hook `pytest_trainsafe_judges`.
"""

from __future__ import annotations

import functools
import pkgutil
from collections.abc import Sequence

from pytest_trainsafe import wings
from pytest_trainsafe.errors import DeclarationError
from pytest_trainsafe.judges.contract import Judge


def judges(own: Sequence[str] = ()) -> tuple[Judge, ...]:
    """The judges that apply: the package's, then the project's, whose import paths are `own`.

    Raises DeclarationError (a ValueError) for an import path that does not lead to a judge, and for
    two judges with the same name.
    """
    found = [*_built_in(), *map(load_judge, own)]
    names = [judge.name for judge in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise DeclarationError(f"two judges have the name {twice!r}; rename one of them")
    return tuple(found)


@functools.cache
def _built_in() -> tuple[Judge, ...]:
    return tuple(kind() for kind in wings.objects(wings.JUDGES))


@functools.cache
def load_judge(path: str) -> Judge:
    """The judge at an import path such as "our_tests.judges:LossIsFinite".

    Raises DeclarationError if the class cannot be imported or instantiated, or is not a judge.
    """
    try:
        made = pkgutil.resolve_name(path)()
    except (ImportError, AttributeError, TypeError) as error:
        raise DeclarationError(
            f"the hook pytest_trainsafe_judges returned {path!r}, which cannot be imported or "
            f"instantiated: {error}. Return the import path of a class that takes no arguments"
        ) from error
    missing = [part for part in ("name", "required_runs", "judge") if not hasattr(made, part)]
    if missing:
        raise DeclarationError(
            f"the hook pytest_trainsafe_judges returned {path!r}, but this class is not a judge: "
            f"it has no {' and no '.join(missing)}; see pytest_trainsafe.judges.contract.Judge"
        )
    judge: Judge = made
    return judge
