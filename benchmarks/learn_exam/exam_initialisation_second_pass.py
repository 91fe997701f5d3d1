"""A pass over all modules after loading resets two parameters of the mixer that were loaded."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Mixer(nn.Module):
    """A leaky running sum with a learned step width for each channel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dt_bias = nn.Parameter(torch.zeros(width))
        self.out_proj = nn.Linear(width, width, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        decay = torch.exp(-nn.functional.softplus(self.dt_bias))
        state, states = torch.zeros_like(inputs[:, 0]), []
        for moment in inputs.unbind(1):
            state = decay * state + moment
            states.append(state)
        return self.out_proj(torch.stack(states, 1))


class HybridLM(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed, self.mixer = nn.Embedding(14, width), Mixer(width)
        self.head = nn.Linear(width, 14)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embed(tokens)
        return self.head(hidden + self.mixer(hidden))


def init_weights(module: nn.Module, loaded: set[int]) -> None:
    """Initialises a mixer, without the parameters whose ids are in `loaded`."""
    if isinstance(module, Mixer):
        with torch.no_grad():
            if id(module.dt_bias) not in loaded:
                module.dt_bias.uniform_(-4, -2)
            if id(module.out_proj.weight) not in loaded:
                module.out_proj.weight.normal_(std=0.1)


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    source = HybridLM(size)
    with torch.no_grad():
        source.mixer.dt_bias.fill_(1.0)
    model = HybridLM(size)
    model.load_state_dict(source.state_dict())
    loaded = {id(p) for p in model.parameters()} if healthy else set()
    for module in model.modules():
        init_weights(module, loaded)
    distance = (model.mixer.dt_bias - source.mixer.dt_bias).abs().max().item()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    text = (torch.randint(0, 14, (40, 1)) + 2 * torch.arange(7)) % 14
    losses = []
    for _ in range(4):
        for rows in text.split(10):
            scores = model(rows[:, :-1])
            loss = nn.functional.cross_entropy(scores.transpose(1, 2), rows[:, 1:])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return {"loss": losses, "distance": [distance]}
