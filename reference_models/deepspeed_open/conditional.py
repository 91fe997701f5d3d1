"""A program of which some micro-batches leave a layer unused, as conditional computation does.

Importing this imports neither torch nor DeepSpeed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pytest_trainsafe.fixtures.deepspeed import deepspeed_program

#: Which micro-batches use the layer; numbers are global, a dp rank has a run of them.
USES: dict[str, Callable[[int, int], bool]] = {
    "always": lambda step, index: True,
    "even steps": lambda step, index: step % 2 == 0,
    "even micro-batches": lambda step, index: index % 2 == 0,
    "odd micro-batches": lambda step, index: index % 2 == 1,
}

#: SGD: Adam would hide a gradient of the wrong size.
CONFIG = {"optimizer": {"type": "SGD", "params": {"lr": 0.1}}, "gradient_clipping": 0.0}


@deepspeed_program(CONFIG, microbatches=2, steps=3)
def train(used: str = "always") -> Any:
    """Two branches of the same shape behind one layer: the first, or where `used` says the second.

    Raises KeyError for a `used` that USES does not have.
    """
    import torch

    from pytest_trainsafe.reference_models.deepspeed_open.branches import Branches

    uses = USES[used]

    def batch(step: int, index: int) -> Any:
        draw = torch.Generator().manual_seed(100 * step + index)
        return torch.randn(3, 6, generator=draw), uses(step, index)

    return Branches(), batch
