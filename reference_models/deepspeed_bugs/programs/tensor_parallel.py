"""The program of the BLOOM-176B bug: a tensor-parallel GPT under DeepSpeed's BF16_Optimizer.

The candidate is trained by DeepSpeed's engine, which learns the ranks of tp from an `mpu` object,
as in Megatron; the reference is trained by plain PyTorch.  Importing this module imports neither
torch nor DeepSpeed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_trainsafe.sweep.traits import Traits, give_traits
from pytest_trainsafe.sweep.validity import divides, requires

if TYPE_CHECKING:
    from pytest_trainsafe.record.context import Context

#: The maximum gradient norm; gradients of this model have a norm of about 3.
CLIP = 0.1


@requires(divides("heads", "tp"), divides("microbatches", "dp"))
def train(
    ctx: Context,
    layers: int = 1,
    hidden: int = 32,
    heads: int = 4,
    microbatches: int = 2,
    steps: int = 2,
    optimizer: str = "AdamW",
    clip: bool = True,
    bug: str = "",
    framework: str = "torch",
) -> None:
    """Trains a GPT for `steps` steps of `microbatches` micro-batches over all dp ranks.

    `optimizer` is "AdamW" or "SGD".  `clip` clips gradients.  `bug` is the name of a bug to plant,
    such as "ds-1801".  `framework` is "torch" for plain PyTorch (the reference), or "deepspeed" for
    DeepSpeed's engine (the candidate).
    """
    from pytest_trainsafe.reference_models.config import GPTConfig
    from pytest_trainsafe.reference_models.deepspeed_bugs.programs.tensor_parallel_training import (
        train_by_deepspeed,
        train_plainly,
    )

    config = GPTConfig(layers, hidden, heads)
    total = int(ctx.point.get("microbatches", microbatches))
    largest = CLIP if clip else 0.0
    if framework == "torch":
        train_plainly(ctx, config, optimizer, total, steps, largest)
    else:
        train_by_deepspeed(ctx, config, optimizer, total, steps, largest, bug)


give_traits(
    train,
    Traits(
        candidate={"framework": "deepspeed"},
        how=frozenset({"bug", "framework"}),
        dtypes=("float32", "bfloat16"),
    ),
)
