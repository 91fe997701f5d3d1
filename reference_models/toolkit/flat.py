"""A wrapper that keeps all parameters of a module in one flat parameter, as FSDP does."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.func import functional_call


class FlatModule(nn.Module):
    """Replaces the parameters of a module by a single one, `flat`.

    Create the optimizer after the FlatModule.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        named = dict(module.named_parameters())
        self.shapes = {name: each.shape for name, each in named.items()}
        self.flat = nn.Parameter(torch.cat([each.detach().reshape(-1) for each in named.values()]))
        # The module is not registered: its own parameters are no longer trained.
        self._module = (module,)

    def forward(self, *inputs: Any) -> Any:
        """Call the module with views of the flat parameter in place of its own."""
        sizes = [shape.numel() for shape in self.shapes.values()]
        pieces = torch.split(self.flat, sizes)
        views = {
            name: piece.view(shape)
            for (name, shape), piece in zip(self.shapes.items(), pieces, strict=True)
        }
        return functional_call(self._module[0], views, inputs)
