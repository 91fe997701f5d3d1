"""Copies between devices, and gradients averaged over such copies.

Here every device is the CPU; what matters is that a copy goes through one place, the link.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


def place(module: nn.Module, device: int) -> int:
    """Assign a module to one of several devices, no two to the same; returns the device."""
    return device


class Link:
    """The connection of two devices.  `copy` is differentiable: gradients take the way back."""

    def copy(self, tensor: Tensor) -> Tensor:
        """The tensor on the other device, with the same values."""
        copied: Tensor = _Copy.apply(tensor, self)  # type: ignore[no-untyped-call]
        return copied

    def carry(self, tensor: Tensor) -> Tensor:
        """Move the bytes of one tensor."""
        return tensor.detach().clone()


class _Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, link: Link) -> Tensor:
        ctx.link = link
        return link.carry(tensor)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return ctx.link.carry(grads[0]), None


def average_gradients(model: nn.Module, group: dist.ProcessGroup, link: Link) -> None:
    """Average every gradient over a group of two ranks, which send each other theirs."""
    me = dist.get_rank(group)
    peer = dist.get_global_rank(group, 1 - me)
    for parameter in model.parameters():
        if parameter.grad is None:
            continue
        received = torch.empty_like(parameter.grad)
        requests = [
            dist.isend(parameter.grad, peer, group=group),
            dist.irecv(received, peer, group=group),
        ]
        for request in requests:
            assert request is not None
            request.wait()
        parameter.grad = (parameter.grad + link.copy(received)) / 2
