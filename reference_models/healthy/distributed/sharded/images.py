"""Fully sharded parameters that compute in bfloat16: a CNN, Adam, evaluation at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_trainsafe.reference_models.training.outcome import Outcome

if TYPE_CHECKING:
    from pytest_trainsafe.record.context import Context


def train(ctx: Context, steps: int = 5, channels: int = 6, lr: float = 1e-2) -> Outcome:
    """Tell horizontal from vertical stripes; masters and reductions are float32."""
    import torch
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.nn import functional as F

    torch.manual_seed(ctx.seed)
    mesh = DeviceMesh.from_group(ctx.group("dp"), "cpu")
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    body = nn.Sequential(
        nn.Conv2d(1, channels, 3), nn.GroupNorm(2, channels), nn.ReLU(), nn.AdaptiveAvgPool2d(3)
    )
    model = nn.Sequential(body, nn.Flatten(), nn.Linear(9 * channels, 2))
    for part in (body, model):
        fully_shard(part, mesh=mesh, mp_policy=policy)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    ctx.watch(model, optimizer, level="step")
    data = torch.Generator().manual_seed(7 + 3 * ctx.seed + ctx.rank)

    def batch() -> tuple[torch.Tensor, torch.Tensor]:
        vertical = torch.randint(2, (14,), generator=data)
        stripes = torch.arange(8).remainder(2).float().expand(14, 1, 8, 8).clone()
        turned = stripes.transpose(2, 3).clone()
        pictures = torch.where(vertical[:, None, None, None] == 1, stripes, turned)
        return pictures + 0.2 * torch.randn(14, 1, 8, 8, generator=data), vertical

    outcome = Outcome()
    for _ in range(steps):
        with ctx.step():
            pictures, vertical = batch()
            optimizer.zero_grad()
            loss = F.cross_entropy(model(pictures).float(), vertical)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
            outcome.losses.append(loss.item())
    model.eval()
    with torch.no_grad():
        model(batch()[0])
    return outcome
