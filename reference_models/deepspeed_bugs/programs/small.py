"""The program in which most bugs of the DeepSpeed catalogue act.

The candidate is trained by the engine of the installed DeepSpeed, or of a release of old; the
reference by plain PyTorch.  Importing this imports neither.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_trainsafe.sweep.traits import Traits, give_traits
from pytest_trainsafe.sweep.validity import divides, requires

if TYPE_CHECKING:
    from pytest_trainsafe.record.context import Context

#: What stands in DeepSpeed's config as `gradient_clipping`; gradients have a norm of about 2.
CLIP = 0.5


@requires(divides("microbatches", "dp"))
def train(
    ctx: Context,
    microbatches: int = 4,
    steps: int = 3,
    optimizer: str = "SGD",
    groups: bool = False,
    clip: bool = False,
    contiguous: bool = True,
    offload: bool = False,
    wide_accumulation: bool = False,
    by_hand: bool = False,
    schedule: str = "",
    bug: str = "",
    release: str = "",
    framework: str = "torch",
) -> None:
    """Train a small network for `steps` steps of `microbatches` micro-batches over all dp ranks.

    `groups` trains vectors at a third of the rate of matrices.  `contiguous` and `offload` are
    ZeRO's `contiguous_gradients` and `offload_optimizer`, `wide_accumulation` asks for gradients
    in float32, and `by_hand` accumulates by `set_gradient_accumulation_boundary` rather than by
    the config.  `schedule` is WarmupLR, WarmupCosineLR or none.  `bug` plants one of the catalogue
    and `release` is the folder of an old release to train with.
    """
    from pytest_trainsafe.reference_models.deepspeed_bugs.programs.recipe import Recipe
    from pytest_trainsafe.reference_models.deepspeed_bugs.programs.small_training import (
        train_by_deepspeed,
        train_plainly,
    )

    recipe = Recipe(
        microbatches=int(ctx.point.get("microbatches", microbatches)),
        steps=steps,
        optimizer=optimizer,
        groups=groups,
        clip=CLIP if clip else 0.0,
        contiguous=contiguous,
        offload=offload,
        wide_accumulation=wide_accumulation,
        by_hand=by_hand,
        schedule=schedule,
    )
    if framework == "torch":
        train_plainly(ctx, recipe)
    else:
        train_by_deepspeed(ctx, recipe, bug, release)


give_traits(
    train,
    Traits(
        candidate={"framework": "deepspeed"},
        how=frozenset({"contiguous", "offload", "by_hand", "bug", "release", "framework"}),
        dtypes=("float32", "bfloat16"),
    ),
)
