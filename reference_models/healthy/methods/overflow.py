"""Mixed precision in float16 whose gradient scaler begins too high, and skips its first steps.

The schedule steps only after those steps that the scaler has taken, and the largest rate is
reached after a warm-up.  An average is updated in each step, also in those that are skipped.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.amp import GradScaler, autocast
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


def train(
    *,
    seed: int = 0,
    steps: int = 14,
    width: int = 16,
    init_scale: float = 2.0**40,
    max_norm: float = 1.0,
    accumulate: int = 1,
) -> list[float]:
    """Fit a function; the loss is divided by `accumulate` micro-batches."""
    torch.manual_seed(seed)
    device = "cpu"
    net = nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
    net.append(nn.Linear(width, 1))
    opt = torch.optim.AdamW(net.parameters(), lr=1e-2)
    scaler = GradScaler(device, init_scale=init_scale, backoff_factor=2.0**-8, growth_interval=50)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=2e-2, total_steps=steps + 1)
    ema = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.9))  # type: ignore[no-untyped-call]
    loss_fn = nn.SmoothL1Loss()
    losses = []
    for _ in range(steps):
        running = 0.0
        for _ in range(accumulate):
            x = torch.randn(32, 8)
            y = (x[:, :1] * 2 - x[:, 1:2]).clamp(-2, 2)
            with autocast(device_type=device, dtype=torch.float16):
                out = net(x)
            loss = loss_fn(out.float(), y) / accumulate
            scaler.scale(loss).backward()
            running += loss.item()
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(net.parameters(), max_norm)
        scale_before = scaler.get_scale()
        scaler.step(opt)
        scaler.update()
        ema.update_parameters(net)
        opt.zero_grad(set_to_none=True)
        skipped = scaler.get_scale() < scale_before
        if not skipped:
            sched.step()
        losses.append(running)
    return losses
