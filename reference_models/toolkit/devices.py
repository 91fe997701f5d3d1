"""Copies between devices, and the averaging of gradients with such copies.

Here every device is the CPU, and every copy goes through a Link, where an error can be planted.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


def place(module: nn.Module, device: int) -> int:
    """Assign a module to a device, which must have no other module; return the device."""
    return device


class Link:
    """The connection of two devices.  `copy` is differentiable: gradients are carried back."""

    def copy(self, tensor: Tensor) -> Tensor:
        """Return the tensor on the other device, with the same values."""
        copied: Tensor = _Copy.apply(tensor, self)  # type: ignore[no-untyped-call]
        return copied

    def carry(self, tensor: Tensor) -> Tensor:
        """Move the bytes of one tensor to the other device; return the new tensor."""
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
    """Average every gradient over a group of two ranks, which exchange their gradients."""
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
