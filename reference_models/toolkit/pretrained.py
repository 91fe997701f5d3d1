"""Models that initialise their parameters as pre-training recipes do."""

from __future__ import annotations

import torch
from torch import Tensor, nn


@torch.no_grad()
def initialize_parameter(parameter: Tensor, mean: float, std: float) -> Tensor:
    """Fill a parameter with normal values.  Call it once, when the model is built."""
    return parameter.normal_(mean=mean, std=std)


class PretrainedModel(nn.Module):
    """The base class of models that initialise their parameters as pre-training recipes do.

    A model calls `post_init` at the end of `__init__`, which initialises every parameter once.
    Projections back into the residual stream must be called `c_proj`; the more `layers` there are,
    the smaller are their initial values.
    """

    layers = 1
    std = 0.02

    def post_init(self) -> None:
        """Initialise the parameters of all modules."""
        for module in self.modules():
            self.init_weights(module)

    def init_weights(self, module: nn.Module) -> None:
        """Initialise a module's own parameters, and the weight of its child `c_proj`.

        The weight of a ResidualProjection is left to its parent module.
        """
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
        """Return whether a parameter is the weight of a residual projection.

        `name` is the parameter's name in the module that is being initialised.
        """
        return name == "c_proj.weight"


class ResidualProjection(nn.Linear):
    """A linear layer whose weight is initialised by its parent module.

    The parent finds the weight by its name, so the attribute of the parent must be `c_proj`.
    """

    residual = True
