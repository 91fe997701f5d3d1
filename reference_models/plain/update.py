"""The loss scale, the gradient norm, clipping and the update of a model on a single device.

Written apart from `parallel/tensor/loss.py`, `parallel/data/gradients.py` and
`parallel/data/update.py`, and used by the reference: what candidate and reference compute by the
same function is not tested, since an error in it is on both sides.  Nothing of those modules is
used here.
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
    """The term of one micro-batch in the mean loss of a step, of the losses of all its targets.

    Every one of the `microbatches` has as many targets.
    """
    return losses.sum() / (losses.numel() * microbatches)


class PlainUpdate:
    """AdamW of all parameters of `model`, and what comes before it.

    Has the methods of `parallel/data/update.py`'s `Update`.
    """

    def __init__(self, model: nn.Module, learning_rate: float) -> None:
        self.parameters = [each for each in model.parameters() if each.requires_grad]
        self.optimizer = adamw(self.parameters, learning_rate)

    def annotated(self, annotations: Mapping[str, Any]) -> Mapping[str, Any]:
        """The annotations as they are: no gradient is a mean over ranks."""
        return annotations

    def accumulate(self) -> None:
        """After each backward: add what it left to the main gradients."""
        main_gradients.accumulate(self.parameters)

    def step(self, ctx: Context, clip: float) -> None:
        """After the last backward: clip the norm of all gradients to `clip`, unless that is 0, and
        update the parameters.
        """
        gradients = [main_gradients.main_gradient(parameter) for parameter in self.parameters]
        norm = torch.linalg.vector_norm(torch.stack([each.norm() for each in gradients]))
        if clip > 0 and norm > clip - 1e-6:
            for gradient in gradients:
                gradient *= clip / (norm + 1e-6)
        self.optimizer.step()
        ctx.grad_norm(norm)
        main_gradients.clear(self.parameters)
