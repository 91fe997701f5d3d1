"""The judges of a test, by import path: those of the package, and a project's own.

A project adds one by the hook `pytest_trainsafe_judges`.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Sequence

from pytest_trainsafe.errors import SweepError
from pytest_trainsafe.judge.contract import Judge

#: In the order in which they judge: what costs least first, after the comparison that leads.
BUILT_IN = ("pytest_trainsafe.judge.compare_judge:CompareJudge",)


def judges(own: Sequence[str] = ()) -> tuple[Judge, ...]:
    """The judges that apply: the package's, then a project's `own`.

    ValueError (a SweepError) for an import path that leads to no judge, and for two judges of one
    name.
    """
    found = [load_judge(path) for path in (*BUILT_IN, *own)]
    names = [judge.name for judge in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise SweepError(f"two judges have the name {twice!r}; give one of them another")
    return tuple(found)


@functools.cache
def load_judge(path: str) -> Judge:
    """The judge at an import path such as "our_tests.judges:LossIsFinite"."""
    module, _, name = path.partition(":")
    try:
        made = getattr(importlib.import_module(module), name)()
    except (ImportError, AttributeError, TypeError) as error:
        raise SweepError(
            f"pytest_trainsafe_judges gave {path!r}, which cannot be made: {error}. Give the "
            "import path of a class whose instances need no arguments"
        ) from error
    missing = [part for part in ("name", "required_runs", "judge") if not hasattr(made, part)]
    if missing:
        raise SweepError(
            f"pytest_trainsafe_judges gave {path!r}, which has no {' and no '.join(missing)}; see "
            "pytest_trainsafe.judge.contract.Judge"
        )
    judge: Judge = made
    return judge
