"""Models that give their parameters values as a pre-training recipe prescribes."""

from __future__ import annotations

import torch
from torch import Tensor, nn


@torch.no_grad()
def initialize_parameter(parameter: Tensor, mean: float, std: float) -> Tensor:
    """Fill a parameter with normal values, once, when its model is built."""
    return parameter.normal_(mean=mean, std=std)


class PretrainedModel(nn.Module):
    """Call `post_init` at the end of `__init__`: every parameter is then initialised once.

    Projections back into the residual stream are called `c_proj`; they start smaller the more
    `layers` there are.
    """

    layers = 1
    std = 0.02

    def post_init(self) -> None:
        """Initialise the parameters of all modules."""
        for module in self.modules():
            self.init_weights(module)

    def init_weights(self, module: nn.Module) -> None:
        """Initialise what belongs to one module."""
        for name, parameter in module.named_parameters():
            if self.is_residual_projection(name):
                initialize_parameter(parameter, 0.0, self.std / (2 * self.layers) ** 0.5)
            elif "." not in name and not getattr(module, "residual", False):
                norm = isinstance(module, nn.LayerNorm) and name == "weight"
                flat = norm or name == "bias"
                initialize_parameter(parameter, float(norm), 0.0 if flat else self.std)
            elif name == "bias":
                initialize_parameter(parameter, 0.0, 0.0)

    def is_residual_projection(self, name: str) -> bool:
        """Whether a parameter of this name, seen from the module that it is asked for, is one."""
        return name == "c_proj.weight"


class ResidualProjection(nn.Linear):
    """A linear layer whose weight its parent initialises; name it `c_proj`."""

    residual = True
