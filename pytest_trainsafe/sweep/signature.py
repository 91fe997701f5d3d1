"""The name and signature of `@pytest.mark.trainsafe`, and its uses in `pytest.param`.

The code that reads the marker is in another module, because the plugin needs this one in every run.
"""

from __future__ import annotations

import pytest

from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.config.table import OPTIONS
from pytest_trainsafe.core.axes import AXES
from pytest_trainsafe.core.usage import listing

MARKER = "trainsafe"

#: The attributes of a test function that `trainsafe_fuzz` made: the names of its axes, and the
#: context manager that surrounds its run.
FUZZ, FUZZING = "trainsafe_fuzz", "trainsafe_fuzzing"

#: The keywords of the marker that are settings; every other keyword is an axis.
SETTING_WORDS = (
    *("args", "candidate_args", "reference"),
    *(option.field for option in OPTIONS if option.marker is not None),
    *("mesh", "expect", "healthy"),
)

_SETTINGS = ", ".join(
    f"{option.field}={option.shown(getattr(Settings(), option.field)) or []}"
    for option in OPTIONS
    if option.marker is not None
)

#: The marker as a test calls it.
SIGNATURE = (
    f"{MARKER}(program, *, args={{}}, candidate_args={{}}, reference={{}}, "
    f"{_SETTINGS}, mesh=None, expect=[], healthy=False, **axes)"
)

#: What `pytest --markers` prints: a line for each part, because pytest does not wrap them.
HELP = "\n    ".join(
    (
        f"{MARKER}(program, **axes): compare the program's parallel training with a reference run,",
        "at every point of the axes.",
        "program: a function of a context, 'package.module:function', or Script(path, args=[])",
        f"axes: {listing(AXES)},",
        "  and the program's own parameters, each with one value or a list of values",
        "args={}: arguments of the program; candidate_args={}: of the candidate run only",
        "reference={}: axes of the reference run, such as {'pp': 2} where one device is too small",
        f"{_SETTINGS}: as the options",
        "mesh=None: Mesh(...) gives a script mesh axes of its own",
        "expect=[]: expect_rng(...) adds expectations of random numbers",
        "healthy=False: True lets --trainsafe-learn learn invariants from the test",
    )
)

_ParameterSet = type(pytest.param())


def param_marks(definition: pytest.Item) -> list[pytest.Mark]:
    """The `trainsafe` markers in `pytest.param(..., marks=...)` of a test's parameters, each once.

    If `argvalues` is an iterator, it is not read, because pytest could then not read it.
    """
    found: dict[int, pytest.Mark] = {}
    for parametrize in definition.iter_markers("parametrize"):
        values = parametrize.kwargs.get("argvalues", (*parametrize.args, (), ())[1])
        for each in values if isinstance(values, (list, tuple)) else ():
            if isinstance(each, _ParameterSet):
                for given in each.marks:
                    mark = given.mark if isinstance(given, pytest.MarkDecorator) else given
                    if mark.name == MARKER:
                        found[id(mark)] = mark
    return list(found.values())
