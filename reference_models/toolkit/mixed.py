"""An optimizer for bfloat16 models, which updates float32 copies of the parameters."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn


class MixedOptimizer:
    """AdamW on float32 master weights of a bfloat16 model.

    `clip` is the maximum gradient norm over the tp group `group`; 0 turns clipping off.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        lr: float,
        clip: float = 0.0,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        self.parameters, self.clip, self.group = list(parameters), clip, group
        self.masters = [nn.Parameter(each.detach().float()) for each in self.parameters]
        self.optimizer = torch.optim.AdamW(self.masters, lr=lr)

    def step(self) -> float:
        """Update the model from its gradients; return their norm before clipping."""
        for parameter, master in zip(self.parameters, self.masters, strict=True):
            master.grad = None if parameter.grad is None else parameter.grad.float()
        norm = self.norm()
        if self.clip and norm > self.clip:
            self.scale(self.clippable(), self.clip / norm)
        self.optimizer.step()
        with torch.no_grad():
            for parameter, master in zip(self.parameters, self.masters, strict=True):
                parameter.copy_(master)
        return norm

    def zero_grad(self) -> None:
        """Clear the gradients of the model."""
        for parameter in self.parameters:
            parameter.grad = None

    def norm(self) -> float:
        """Return the norm of all gradients over the tp group.

        Gradients of parameters that every rank holds count once.
        """
        squares = torch.zeros(())
        for parameter, master in zip(self.parameters, self.masters, strict=True):
            if master.grad is not None and (self.first or self.sharded(parameter)):
                squares += master.grad.square().sum()
        if self.group is not None:
            dist.all_reduce(squares, group=self.group)
        return float(squares.sqrt())

    def clippable(self) -> list[Tensor]:
        """Return the gradients to scale if the norm is too large."""
        return [master.grad for master in self.masters if master.grad is not None]

    def scale(self, gradients: list[Tensor], factor: float) -> None:
        """Multiply gradients by a factor."""
        for gradient in gradients:
            gradient.mul_(factor)

    @property
    def first(self) -> bool:
        """Whether this is the first rank of its tp group."""
        return self.group is None or dist.get_rank(self.group) == 0

    def sharded(self, parameter: nn.Parameter) -> bool:
        """Return whether each tp rank holds a different part of the parameter."""
        return bool(getattr(parameter, "tensor_model_parallel", False))
