"""Programs that declare a mesh: hybrid sharding, and tensor parallelism in two orders of ranks.

They use only the public API.  Ranks are ordered by a DeviceMesh that the program makes itself,
as a framework does; `on_mesh` declares the same order to pytest-trainsafe.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from pytest_trainsafe import Mesh, on_mesh

MICROBATCHES, BATCH, WIDTH = 4, 3, 4
DATA = {"dp_replicate": "dp", "dp_shard": "dp"}
ANNOTATIONS = {
    "parameters": {"up.*": {"tp_dim": 0}, "down.weight": {"tp_dim": 1}},
    "modules": {"up": {"output": {"tp_dim": -1}}, "down": {"output": {"tp_partial": True}}},
}


def batch(index: int) -> Tensor:
    generator = torch.Generator().manual_seed(index)
    return torch.randn((BATCH, WIDTH), generator=generator, dtype=torch.float64)


class Enter(torch.autograd.Function):
    """Identity in forward, all-reduce over tp in backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        grad = grad.clone()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


class Leave(torch.autograd.Function):
    """All-reduce over tp in forward, identity in backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad, None


class Block(nn.Module):
    """Two linear layers, sharded over the ranks of `group` if there is one."""

    def __init__(self, group: Any = None) -> None:
        super().__init__()
        size = group.size() if group is not None else 1
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH // size)
        self.down = nn.Linear(2 * WIDTH // size, WIDTH, bias=False)
        self.group = group

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        if self.group is None:
            return self.down(torch.tanh(self.up(x)))
        x = self.down(torch.tanh(self.up(Enter.apply(x, self.group))))
        return Leave.apply(x, self.group)


def steps(ctx: Any, model: nn.Module, reduce: Any = lambda: None) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    ctx.watch(model, optimizer, annotations=ANNOTATIONS)
    with ctx.step():
        for index in ctx.microbatches(MICROBATCHES):
            with ctx.microbatch(index):
                loss = model(batch(index).to(ctx.dtype)).square().mean()
                ctx.loss(loss)
                (loss / MICROBATCHES).backward()
        reduce()
        optimizer.step()


@on_mesh(Mesh("dp_replicate", "dp_shard", roles=DATA))
def hybrid(ctx: Any, missing: str = "") -> None:
    """FSDP2's hybrid sharding, which sums gradients; the axis `missing` is left out of its mesh."""
    model = Block().to(ctx.dtype)
    ctx.initialize(model, annotations=ANNOTATIONS)
    if ctx.world_size > 1:
        from torch.distributed.fsdp import fully_shard

        assert ranks(ctx.group("dp")) == [0, 1, 2, 3]
        axes = tuple(axis for axis in ctx.mesh.mesh_dim_names if axis != missing)
        sharded: Any = fully_shard(model, mesh=ctx.mesh[axes])
        sharded.set_gradient_divide_factor(1.0)
        sharded.set_force_sum_reduction_for_comms(True)
    steps(ctx, model)


def ranks(group: dist.ProcessGroup) -> list[int]:
    return dist.get_process_group_ranks(group)


def on_own_mesh(ctx: Any, names: tuple[str, ...], missing: str) -> None:
    """Tensor parallelism, and an all-reduce over each axis of data parallelism but `missing`."""
    mesh: DeviceMesh | None = None
    if ctx.world_size > 1:
        dist.init_process_group("gloo")
        mesh = init_device_mesh("cpu", tuple(map(ctx.point.size, names)), mesh_dim_names=names)
        assert [mesh.get_local_rank(n) for n in names] == [ctx.coordinates[n] for n in names]
        assert ranks(ctx.group("dp")) == ranks(mesh.get_group("dp_replicate"))
    model = Block(mesh.get_group("tp") if mesh is not None else None).to(ctx.dtype)
    ctx.initialize(model, annotations=ANNOTATIONS)

    def reduce() -> None:
        for axis in DATA:
            if mesh is not None and axis in names and axis != missing:
                for parameter in model.parameters():
                    dist.all_reduce(parameter.grad, group=mesh.get_group(axis))

    steps(ctx, model, reduce)


@on_mesh(Mesh("dp_replicate", "tp", roles={"dp_replicate": "dp"}))
def tp_innermost(ctx: Any, missing: str = "") -> None:
    on_own_mesh(ctx, ("dp_replicate", "tp"), missing)


@on_mesh(Mesh("tp", "dp_replicate", roles={"dp_replicate": "dp"}))
def tp_outermost(ctx: Any, missing: str = "") -> None:
    on_own_mesh(ctx, ("tp", "dp_replicate"), missing)
