"""AdamW, with float32 master weights for parameters of narrower dtypes.

A relative update of a thousandth would be lost in a bfloat16 weight (8 bits of precision).  So the
update is made to the float32 master weight, and the weight is the rounded master.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from pytest_trainsafe.reference_models.training.main_gradients import is_narrow, main_gradient

#: Hyperparameters that are common for GPTs.
ADAMW: dict[str, Any] = {"betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}


def adamw(parameters: Sequence[nn.Parameter], learning_rate: float) -> torch.optim.AdamW:
    """Return AdamW with hyperparameters that are common for GPTs (ADAMW).

    A narrow parameter gets the attributes `main_grad` and `main_param`, named as in Megatron-LM.
    `main_param` is its master weight, which the optimizer updates.
    """
    narrow = [parameter for parameter in parameters if is_narrow(parameter)]
    for parameter in narrow:
        master = nn.Parameter(parameter.detach().float())
        parameter.main_param = master  # type: ignore[attr-defined]
        if not hasattr(parameter, "main_grad"):  # it may have a place in a bucket
            parameter.main_grad = torch.zeros_like(master, requires_grad=False)  # type: ignore[attr-defined]

    held = [getattr(parameter, "main_param", parameter) for parameter in parameters]
    optimizer = torch.optim.AdamW(held, lr=learning_rate, **ADAMW)

    def give_main_gradients(*_: Any) -> None:
        for parameter, tensor in zip(parameters, held, strict=True):
            tensor.grad = main_gradient(parameter)

    def copy_masters_to_parameters(*_: Any) -> None:
        with torch.no_grad():
            for parameter in narrow:
                parameter.copy_(parameter.main_param)  # type: ignore[attr-defined]

    optimizer.register_step_pre_hook(give_main_gradients)
    optimizer.register_step_post_hook(copy_masters_to_parameters)
    return optimizer
