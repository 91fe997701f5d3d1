"""A program with conditional computation: some micro-batches do not use a layer.

Importing this imports neither torch nor DeepSpeed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pytest_trainsafe.fixtures.deepspeed import deepspeed_program

#: Functions that say whether a micro-batch of a step uses the second branch.  Micro-batches are
#: numbered over all dp ranks.
USES: dict[str, Callable[[int, int], bool]] = {
    "always": lambda step, index: True,
    "even steps": lambda step, index: step % 2 == 0,
    "even micro-batches": lambda step, index: index % 2 == 0,
    "odd micro-batches": lambda step, index: index % 2 == 1,
}

#: A config with SGD, since Adam would hide a gradient of the wrong size.
CONFIG = {"optimizer": {"type": "SGD", "params": {"lr": 0.1}}, "gradient_clipping": 0.0}


@deepspeed_program(CONFIG, microbatches=2, steps=3)
def train(used: str = "always") -> Any:
    """Builds a model with two branches; `deepspeed_program` makes this a program that trains it.

    `used` is a key of USES and says which micro-batches use the second branch; the others use the
    first.  Returns the model and a function `batch(step, index)` that returns the inputs of
    micro-batch `index`, and whether this micro-batch uses the second branch.  Raises KeyError for
    another key.
    """
    import torch

    from pytest_trainsafe.reference_models.deepspeed_open.branches import Branches

    uses = USES[used]

    def batch(step: int, index: int) -> Any:
        draw = torch.Generator().manual_seed(100 * step + index)
        return torch.randn(3, 6, generator=draw), uses(step, index)

    return Branches(), batch
