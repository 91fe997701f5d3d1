"""DeepSpeed's bugs that stop a training: ranks that wait for each other forever, and a KeyError.

The evaluation of TrainCheck uses them (OSDI 2025, Tables 3 and 5).  Nothing is compared here, since
a training that never ends has no result; instead, the launcher must fail with a message that says
why.  Importing this module imports neither torch nor DeepSpeed.
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
    """A bug that makes a training hang or crash at the Point `where`; `what` says how.

    `name` is the name of the function in `stopping` that trains, and `number` the number of the
    report by which TrainCheck refers to the bug.
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
        "the ranks' sequences differ in length, and so do the sizes that they exchange in "
        "all_to_all",
    ),
    Stuck(
        "of_own_capacity",
        6089,
        {"dp": 2, "ep": 2},
        "a mixture that drops no token is evaluated without an engine, so the ranks do not agree "
        "on a capacity",
    ),
    Stuck(
        "of_own_limit",
        6089,
        {"dp": 2, "ep": 2, "zero": 1},
        "each rank limits the capacity on which all ranks agreed to the number of its own tokens",
    ),
    Stuck(
        "in_one_stage",
        6714,
        {"pp": 2},
        "only the pipeline stage that has experts reduces their norm over all stages",
    ),
    Stuck(
        "of_another_model",
        6770,
        {"dp": 2, "zero": 1},
        "the optimizer holds parameters that the model does not have",
    ),
)


def train(ctx: Context, bug: str = "", sound: bool = False, release: str = "") -> None:
    """Runs the training that a bug stops; `bug` is the name of an entry of `STUCK`.

    With `sound`, runs the most similar training that does not trigger the bug.  `release` is the
    folder of an old release to train with, "" for the installed one.
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
