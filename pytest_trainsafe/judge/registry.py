"""Loads the judges of a test by import path: the package's, and those that a project adds.

A project adds judges with the hook `pytest_trainsafe_judges`.
"""

from __future__ import annotations

import functools
import pkgutil
from collections.abc import Sequence

from pytest_trainsafe.errors import DeclarationError
from pytest_trainsafe.judge.contract import Judge

#: In the order in which they run: the comparison leads, the others follow by cost.
BUILT_IN = (
    "pytest_trainsafe.judge.compare_judge:CompareJudge",
    "pytest_trainsafe.judge.replay_judge:ReplayJudge",
    "pytest_trainsafe.judge.learn_judge:LearnJudge",
)


def judges(own: Sequence[str] = ()) -> tuple[Judge, ...]:
    """The judges that apply: the package's, then the project's (`own`).

    Raises DeclarationError (a ValueError) for an import path that leads to no judge, and for two
    judges with the same name.
    """
    found = [load_judge(path) for path in (*BUILT_IN, *own)]
    names = [judge.name for judge in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise DeclarationError(f"two judges have the name {twice!r}; give one of them another")
    return tuple(found)


@functools.cache
def load_judge(path: str) -> Judge:
    """The judge at an import path such as "our_tests.judges:LossIsFinite"."""
    try:
        made = pkgutil.resolve_name(path)()
    except (ImportError, AttributeError, TypeError) as error:
        raise DeclarationError(
            f"pytest_trainsafe_judges gave {path!r}, which cannot be made: {error}. Give the "
            "import path of a class whose instances need no arguments"
        ) from error
    missing = [part for part in ("name", "required_runs", "judge") if not hasattr(made, part)]
    if missing:
        raise DeclarationError(
            f"pytest_trainsafe_judges gave {path!r}, which has no {' and no '.join(missing)}; see "
            "pytest_trainsafe.judge.contract.Judge"
        )
    judge: Judge = made
    return judge
