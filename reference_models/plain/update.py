"""The loss scale, the gradient norm, clipping and the update of a model on a single device.

The reference uses these functions.  They share no code with `parallel/tensor/loss.py`,
`parallel/data/gradients.py` and `parallel/data/update.py`, which candidates use, because an error
in a function that the reference and the candidate both call would go unseen.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from pytest_trainsafe.reference_models.training import main_gradients
from pytest_trainsafe.reference_models.training.optimizer import adamw

if TYPE_CHECKING:
    from pytest_trainsafe.record.context import Context


def plain_loss(losses: Tensor, microbatches: int) -> Tensor:
    """Return the term of one micro-batch in the mean loss of a step.

    `losses` has the loss of each target of the micro-batch.  All `microbatches` micro-batches of
    the step must have the same number of targets.
    """
    return losses.sum() / (losses.numel() * microbatches)


class PlainUpdate:
    """Accumulates and clips the gradients of `model`, and updates its parameters with AdamW.

    Has the same methods as `Update` in `parallel/data/update.py`.
    """

    def __init__(self, model: nn.Module, learning_rate: float) -> None:
        self.parameters = [each for each in model.parameters() if each.requires_grad]
        self.optimizer = adamw(self.parameters, learning_rate)

    def annotated(self, annotations: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the annotations unchanged, because no gradient is a mean over ranks."""
        return annotations

    def accumulate(self) -> None:
        """Add the gradients of a backward to the main gradients; call it after every backward."""
        main_gradients.accumulate(self.parameters)

    def step(self, ctx: Context, clip: float) -> None:
        """Clip the gradients, update the parameters and clear the gradients.

        Call it after the last backward of a step.  The norm of all gradients is clipped to `clip`,
        unless `clip` is 0.
        """
        gradients = [main_gradients.main_gradient(parameter) for parameter in self.parameters]
        norm = torch.linalg.vector_norm(torch.stack([each.norm() for each in gradients]))
        if clip > 0 and norm > clip - 1e-6:
            for gradient in gradients:
                gradient *= clip / (norm + 1e-6)
        self.optimizer.step()
        ctx.grad_norm(norm)
        main_gradients.clear(self.parameters)
