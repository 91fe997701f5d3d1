"""The program in which most bugs of the DeepSpeed catalogue act.

The candidate is trained by the engine of the installed DeepSpeed or of an old release, and the
reference by plain PyTorch.  Importing this module imports neither torch nor DeepSpeed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_trainsafe.sweep.traits import Traits, give_traits
from pytest_trainsafe.sweep.validity import divides, requires

if TYPE_CHECKING:
    from pytest_trainsafe.record.context import Context

#: The value of `gradient_clipping` in DeepSpeed's config; gradients have a norm of about 2.
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
    """Trains a small network for `steps` steps of `microbatches` micro-batches over all dp ranks.

    `optimizer` is "SGD" or "AdamW".  `groups` trains vectors at a third of the learning rate of
    matrices.  `clip` clips gradients.  `contiguous` and `offload` set ZeRO's
    `contiguous_gradients` and `offload_optimizer`; `wide_accumulation` accumulates gradients in
    float32; `by_hand` accumulates with `set_gradient_accumulation_boundary` instead of the config.
    `schedule` is "WarmupLR", "WarmupCosineLR" or "".  `bug` is the name of a bug to plant, and
    `release` the folder of an old release to train with.  `framework` is "torch" for plain PyTorch
    (the reference), or "deepspeed" for DeepSpeed's engine (the candidate).
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
