"""An LSTM reads long records of a river in windows, and keeps its state between them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

State = tuple[Tensor, Tensor]


def repackage(state: State) -> State:
    return state[0].detach(), state[1].detach()


def train(seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    batch, length, bptt = 6, 130, 12
    t = torch.arange(length)
    phase = torch.rand(batch, 1) * 6
    level = torch.sin(0.25 * t + phase) + 0.4 * torch.sin(0.06 * t)
    level = level + 0.05 * torch.randn(batch, length)
    series = level.t().unsqueeze(-1)

    lstm = nn.LSTM(1, size)
    head = nn.Linear(size, 1)
    params = list(lstm.parameters()) + list(head.parameters())
    opt = torch.optim.RMSprop(params, lr=5e-3)
    lr = torch.optim.lr_scheduler.ExponentialLR(opt, gamma=0.9)
    losses = []
    for _epoch in range(5):
        state: State = (torch.zeros(1, batch, size), torch.zeros(1, batch, size))
        for i in range(0, length - 1, bptt):
            seq = min(bptt, length - 1 - i)
            state = repackage(state)
            out, state = lstm(series[i : i + seq], state)
            loss = nn.functional.mse_loss(head(out), series[i + 1 : i + 1 + seq])
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(params, 0.25)
            opt.step()
            losses.append(loss.item())
        lr.step()
    return {"loss": losses}
