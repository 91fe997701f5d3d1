"""The biases of routers on a single device, which sees all choices of a step itself."""

from __future__ import annotations

from torch import nn

from pytest_trainsafe.reference_models.blocks.routing import BiasedSelection


def update_biases(model: nn.Module) -> None:
    """Update the biases of all routers after a step."""
    for module in model.modules():
        if isinstance(module, BiasedSelection):
            module.update(module.counts)
