"""An ensemble without an optimizer object: stacked parameters, vmap and a pure update."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, stack_module_state, vmap

State = dict[str, Tensor]


def train(seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    members = [nn.Sequential(nn.Linear(3, size), nn.ELU(), nn.Linear(size, 1)) for _ in range(4)]
    parameters, buffers = stack_module_state(members)
    skeleton = members[0].to("meta")

    def loss_of(weights: State, state: State, inputs: Tensor, answers: Tensor) -> Tensor:
        guesses: Tensor = functional_call(skeleton, (weights, state), (inputs,))
        return (guesses.squeeze(-1) - answers).abs().mean()

    slopes = vmap(grad_and_value(loss_of), in_dims=(0, 0, None, None))
    weights: State = {name: value.detach() for name, value in parameters.items()}
    speed: State = {name: torch.zeros_like(value) for name, value in weights.items()}
    losses = []
    for _ in range(26):
        inputs = torch.randn(32, 3)
        answers = inputs[:, 0] * inputs[:, 1].sign() + 1.0
        grads, values = slopes(weights, buffers, inputs, answers)
        speed = {name: 0.9 * speed[name] + grads[name] for name in weights}
        weights = {name: weights[name] - 0.02 * speed[name] for name in weights}
        losses.append(values.mean().item())
    return {"loss": losses}
