"""An engine that runs the training steps of a model and its optimizer."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from pytest_trainsafe.reference_models.toolkit.checkpoint import write_tensors


class Engine:
    """Runs backwards and steps, and saves checkpoints; `clip` limits the gradient norm.

    Raises KeyError if the optimizer has a parameter that the model does not have.
    """

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, clip: float = 1.0
    ) -> None:
        self.model, self.optimizer, self.clip = model, optimizer, clip
        self.names = self.name_parameters(optimizer)
        self.number_modules(model)

    def name_parameters(self, optimizer: torch.optim.Optimizer) -> list[str]:
        """Return the names of the optimizer's parameters, for its checkpoints."""
        names = {parameter: name for name, parameter in self.model.named_parameters()}
        return [names[each] for group in optimizer.param_groups for each in group["params"]]

    def number_modules(self, model: nn.Module) -> None:
        """Number the modules, in the order in which their parameters are fetched."""
        for number, module in enumerate(model.modules()):
            module.engine_id = number  # type: ignore[assignment]

    def backward(self, loss: Tensor) -> None:
        """Differentiate the loss."""
        loss.backward()  # type: ignore[no-untyped-call]

    def step(self) -> None:
        """Clip the gradients, update the parameters, and clear the gradients."""
        nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def save(self, path: Path) -> int:
        """Write the weights of the model; return the number of tensors written."""
        return write_tensors(self.weights(), path, len(self.model.state_dict()))

    def weights(self) -> dict[str, Tensor]:
        """Return the weights to save, by name."""
        return dict(self.model.state_dict())
