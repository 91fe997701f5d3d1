"""DeepSpeed's bugs that stop a training: ranks that wait for each other, and a KeyError.

TrainCheck was judged by them (OSDI 2025, Tables 3 and 5).  Nothing is compared here: a training
that never ends has no result, and what is asked of the launcher is a failure that says why.
Importing this imports neither torch nor DeepSpeed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_trainsafe.sweep.traits import Traits, give_traits

if TYPE_CHECKING:
    from pytest_trainsafe.record.context import Context


@dataclass(frozen=True, slots=True)
class Stuck:
    """A bug that stops a training at a Point of `train`; `what` says how.

    `number` is that of the report that TrainCheck names it by.  `name` is a function of `stopping`.
    """

    name: str
    number: int
    where: Mapping[str, int]
    what: str


STUCK = (
    Stuck(
        "of_own_length",
        5794,
        {"dp": 2, "ep": 2, "zero": 2},
        "each rank's sequence is as long as it comes, and so is what it exchanges in all_to_all",
    ),
    Stuck(
        "of_own_capacity",
        6089,
        {"dp": 2, "ep": 2},
        "a mixture that drops no token is evaluated without an engine: no rank learns of another's "
        "capacity",
    ),
    Stuck(
        "of_own_limit",
        6089,
        {"dp": 2, "ep": 2, "zero": 1},
        "the capacity that all ranks agreed on is cut to the number of a rank's own tokens",
    ),
    Stuck(
        "in_one_stage",
        6714,
        {"pp": 2},
        "only the stage of a pipeline that has experts reduces their norm over all stages",
    ),
    Stuck(
        "of_another_model",
        6770,
        {"dp": 2, "zero": 1},
        "the optimizer holds parameters that the model has not",
    ),
)


def train(ctx: Context, bug: str = "", sound: bool = False, release: str = "") -> None:
    """Train as a user did who met a bug of `STUCK`; `sound` is the nearest training without it.

    `release` is the folder of an old release to train with.
    """
    from pytest_trainsafe.fixtures.deepspeed.engine import start
    from pytest_trainsafe.reference_models.deepspeed_bugs.releases import start_release

    deepspeed: Any = start_release(release) if release else start(ctx)
    from pytest_trainsafe.reference_models.deepspeed_bugs.programs import (
        stopping,  # imports deepspeed
    )

    stopping.TRAININGS[bug](ctx, deepspeed, sound)


give_traits(
    train,
    Traits(how=frozenset({"bug", "sound", "release"}), dtypes=("float32",)),
)
