"""The table of rungs: those of this package, and those that a project adds.

A test is judged at one rung after another, from the most to the least precise.  No other file lets
the name of a dtype decide anything; `tests/core/test_rungs_decide.py` checks it.
"""

from __future__ import annotations

from collections.abc import Mapping

from pytest_trainsafe import wings
from pytest_trainsafe.core.rungs.rung import Rung
from pytest_trainsafe.errors import ArgumentError

#: The dtype of a recipe that names none.
RECIPE = "float32"

#: The rung whose rounding hides no bug, which the default ladder starts with.
WIDEST = "float64"

#: Differences up to these multiples of an allowance may be due to a small sample of noise.
#: A sample of a single Gaussian number is 10 000 times too small once in 10 000 times.  In float64
#: a saturated softmax amplifies rounding by more, and bugs exceed it by 1e9.
_NEAR, _NEAR_WIDEST = 1e4, 1e8

_BUILT_IN = {
    each.name: each
    for each in (
        Rung(
            WIDEST,
            WIDEST,
            method="double",
            epsilon=2.0**-52,
            safety=30.0,
            floor=0.5,
            # Noise of the size of rounding changes a tensor by some 1e-13 of its size.
            steady=1e-6,
            resampled=_NEAR_WIDEST,
            narrower=("bfloat16", "float16", "float32"),
            optional=True,
            casts=True,
        ),
        Rung(
            RECIPE,
            RECIPE,
            method="float",
            epsilon=2.0**-23,
            safety=10.0,
            floor=0.5,
            resampled=_NEAR,
            narrower=("bfloat16", "float16"),
            measured_by=WIDEST,
            replays=True,
        ),
        Rung(
            "bfloat16",
            "bfloat16",
            method="bfloat16",
            epsilon=2.0**-7,
            safety=4.0,
            floor=0.125,
            low=True,
            resampled=_NEAR,
            measured_by=WIDEST,
            replays=True,
        ),
        Rung(
            "float16",
            "float16",
            method="half",
            epsilon=2.0**-10,
            safety=4.0,
            floor=0.125,
            low=True,
            resampled=_NEAR,
            measured_by=WIDEST,
            replays=True,
        ),
        # For programs that cast to FP8.  The noise is that of bfloat16, the coarsest dtype that
        # FP8 is used with.  It moves some values to another FP8 code, so that responses vary more.
        Rung(
            "float8",
            "",
            epsilon=2.0**-7,
            safety=6.0,
            floor=0.25,
            low=True,
            resampled=_NEAR,
            replays=True,
        ),
    )
}

#: The import paths of the rungs of wings, by name.
_OF_WINGS = wings.present(wings.RUNGS | wings.FOLLOWED_RUNGS)

#: The names that no rung of a project can have.
BUILT_IN_RUNGS = (*_BUILT_IN, *_OF_WINGS)

#: The dtypes of recipes, from the most to the least precise: the order of the precision ladder.
DTYPES = tuple(name for name, each in _BUILT_IN.items() if each.host)

#: The import paths of the rungs that wings and projects add, by name.
_added: dict[str, str] = dict(_OF_WINGS)


def add_rungs(paths: Mapping[str, str]) -> None:
    """Adds rungs to the table, by name and import path; nothing is imported."""
    assert not _BUILT_IN.keys() & paths.keys(), paths
    _added.update(paths)


def rung_names() -> tuple[str, ...]:
    """The names of all rungs that a program can run in, those that are added last."""
    return (*DTYPES, *_added)


def rung_choices() -> tuple[str, ...]:
    """The names of the rungs that a user may select."""
    return tuple(name for name in rung_names() if name not in wings.FOLLOWED_RUNGS)


def path_of(name: str) -> str:
    """The import path of a rung that a wing or a project adds; "" for a dtype of torch."""
    return _added.get(name, "")


def rung_named(name: str) -> Rung:
    """The rung with this name, one of `rung_names`, or "float8", which stands for casts to FP8.

    Raises ArgumentError if the import path of a project's rung does not lead to it.
    """
    return _BUILT_IN.get(name) or _imported(name, _added[name])


def _imported(name: str, path: str) -> Rung:
    from pkgutil import resolve_name  # every start of pytest imports this module

    try:
        found = resolve_name(path)
    except (ImportError, AttributeError) as error:
        raise ArgumentError(
            f"the rung {name!r} cannot be imported from {path!r} ({error}); pytest_trainsafe_rungs "
            'must return import paths "package.module:NAME" that every rank can import'
        ) from error
    if not isinstance(found, Rung) or found.name != name:
        raise ArgumentError(
            f"{path!r} is not a Rung with the name {name!r}; pytest_trainsafe_rungs must return "
            "the import path of an instance of pytest_trainsafe.core.rungs.rung.Rung, by its name"
        )
    return found


def default_ladder(recipe: str) -> tuple[str, ...]:
    """The rungs at which a recipe in the dtype `recipe` is judged if no setting names any.

    A rung that wings or projects add is no dtype that a recipe rounds to, and is judged alone.
    """
    if recipe not in DTYPES:
        return (recipe,)
    lowest = DTYPES.index(recipe)
    ladder = dict.fromkeys((WIDEST, RECIPE, recipe))
    return tuple(name for name in ladder if DTYPES.index(name) <= lowest)
