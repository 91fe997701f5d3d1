"""torch's ways to train in parallel give what a single device gives, in ranks that run in turn."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import pipelining
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor.parallel import loss_parallel
from torch.nn.parallel import DistributedDataParallel

from tests.support.launch.in_turn import in_turn

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it uses what torch itself has deprecated
    from torch.distributed.optim import ZeroRedundancyOptimizer

#: Of the layers and of the batch.
SIZE, BATCH, LAYERS = 8, 8, 4


def model() -> nn.Sequential:
    """The same model on every rank."""
    made = torch.Generator().manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(LAYERS):
        layer = nn.Linear(SIZE, SIZE)
        for each in layer.parameters():
            each.data.copy_(torch.randn(each.shape, generator=made) / SIZE**0.5)
        layers += [nn.Sequential(layer, nn.Tanh())]
    return nn.Sequential(*layers)


def batch() -> torch.Tensor:
    """The whole batch."""
    return torch.randn(BATCH, SIZE, generator=torch.Generator().manual_seed(1))


def trained() -> list[torch.Tensor]:
    """The parameters after two steps on a single device."""
    alone = model()
    optimizer = torch.optim.Adam(alone.parameters(), lr=0.01)
    for _ in range(2):
        alone(batch()).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [each.detach() for each in alone.parameters()]


def check(found: list[list[torch.Tensor]]) -> None:
    """Every rank has the parameters that training on a single device gives."""
    for rank in found:
        for each, expected in zip(rank, trained(), strict=True):
            torch.testing.assert_close(each, expected)
            # Adam moves each parameter by about the learning rate.
    assert not torch.equal(trained()[0], next(model().parameters()))


def part() -> torch.Tensor:
    """This rank's part of the batch."""
    return batch().chunk(dist.get_world_size())[dist.get_rank()]


def step(wrapped: Any, optimizer: Any, given: torch.Tensor) -> None:
    """Take a step on the mean over the given part of the batch."""
    wrapped(given).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def data_parallel() -> list[torch.Tensor]:
    """DistributedDataParallel, with small buckets."""
    wrapped = DistributedDataParallel(model(), bucket_cap_mb=1)
    optimizer = torch.optim.Adam(wrapped.parameters(), lr=0.01)
    for _ in range(2):
        step(wrapped, optimizer, part())
    return [each.detach() for each in wrapped.parameters()]


def zero() -> list[torch.Tensor]:
    """DistributedDataParallel with an optimizer whose states are sharded."""
    wrapped = DistributedDataParallel(model())
    kind: Any = ZeroRedundancyOptimizer
    optimizer = kind(wrapped.parameters(), torch.optim.Adam, lr=0.01)
    for _ in range(2):
        step(wrapped, optimizer, part())
    return [each.detach() for each in wrapped.parameters()]


def fully_sharded() -> list[torch.Tensor]:
    """FSDP2, layer by layer."""
    from torch.distributed.fsdp import fully_shard

    wrapped = model()
    for layer in wrapped:
        fully_shard(layer)
    fully_shard(wrapped)
    optimizer = torch.optim.Adam(wrapped.parameters(), lr=0.01)
    for _ in range(2):
        step(wrapped, optimizer, part())
    return [each.full_tensor().detach() for each in wrapped.parameters()]  # type: ignore[attr-defined]


def tensor_parallel() -> list[torch.Tensor]:
    """DTensor's column-wise and row-wise layers."""
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    wrapped = model()
    plan: dict[str, Any] = {
        f"{n}.0": RowwiseParallel() if n % 2 else ColwiseParallel() for n in range(LAYERS)
    }
    parallelize_module(wrapped, mesh, plan)
    optimizer = torch.optim.Adam(wrapped.parameters(), lr=0.01, foreach=False)
    for _ in range(2):
        step(wrapped, optimizer, batch())
    return [each.full_tensor().detach() for each in wrapped.parameters()]  # type: ignore[attr-defined]


@pytest.mark.parametrize("program", [data_parallel, zero, fully_sharded, tensor_parallel])
@pytest.mark.parametrize("world", [2, 4])
def test_a_wrapper_trains_like_a_single_device(program: Any, world: int) -> None:
    """The parameters after two steps."""
    check(in_turn(program, world))


SCHEDULES = ["GPipe", "1F1B", "Interleaved1F1B", "InterleavedZeroBubble"]


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_pipeline_has_the_gradients_of_a_single_device(name: str) -> None:
    """Two ranks, each with one stage, or with two if the schedule interleaves them."""
    world, microbatches = 2, 4

    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return (output - target).pow(2).mean()

    def program() -> dict[int, list[torch.Tensor]]:
        rank, layers = dist.get_rank(), list(copy.deepcopy(model()))
        kind: Any = pipelining.schedules.get_schedule_class(name)
        several = issubclass(kind, pipelining.schedules.PipelineScheduleMulti)
        numbers = [rank, rank + world] if several else [rank]
        each = LAYERS // (2 * world if several else world)
        parts = {n: nn.Sequential(*layers[n * each : (n + 1) * each]) for n in numbers}
        count = 2 * world if several else world
        stages = [
            pipelining.PipelineStage(parts[n], n, count, torch.device("cpu")) for n in numbers
        ]
        schedule = kind(stages if several else stages[0], microbatches, loss_fn=loss)
        given = (batch(),) if rank == 0 else ()
        target = torch.zeros(BATCH, SIZE)
        schedule.step(*given, target=target) if rank == world - 1 else schedule.step(*given)
        return {
            n * each + at: [p.grad for p in layer.parameters() if p.grad is not None]
            for n, module in parts.items()
            for at, layer in enumerate(module)
        }

    alone = model()
    alone(batch()).pow(2).mean().backward()
    found: dict[int, list[torch.Tensor]] = {}
    for rank in in_turn(program, world):
        found |= rank
    assert sorted(found) == list(range(LAYERS))
    for number, layer in enumerate(alone):
        for gradient, parameter in zip(found[number], layer.parameters(), strict=True):
            torch.testing.assert_close(gradient, parameter.grad)


def test_a_parallel_loss_is_that_of_a_single_device_and_leaves_no_operators_behind() -> None:
    """Its context adds operators of DTensor's for the rank, and removes them at its end."""

    def program() -> tuple[torch.Tensor, torch.Tensor]:
        logits = distribute_tensor(batch(), init_device_mesh("cpu", (2,)), [Shard(1)])
        logits.requires_grad_()
        with loss_parallel():
            loss = nn.functional.cross_entropy(logits, torch.arange(BATCH))
            dist.barrier()  # the other rank's context begins inside of this one
            loss.backward()
        whole: list[Any] = [loss.detach(), logits.grad]
        return whole[0].full_tensor(), whole[1].full_tensor()

    before = dict(DTensor._op_dispatcher._custom_op_handlers)
    alone = batch().requires_grad_()
    expected = nn.functional.cross_entropy(alone, torch.arange(BATCH))
    expected.backward()
    for loss, gradient in in_turn(program, 2):
        torch.testing.assert_close(loss, expected.detach())
        torch.testing.assert_close(gradient, alone.grad)
    assert before == DTensor._op_dispatcher._custom_op_handlers


def test_64_ranks_train() -> None:
    """Their gradients are the mean of those of all examples."""

    def program() -> torch.Tensor:
        wrapped = DistributedDataParallel(model())
        examples = torch.randn(64, SIZE, generator=torch.Generator().manual_seed(2))
        wrapped(examples[dist.get_rank()][None]).pow(2).mean().backward()
        return torch.cat([p.grad.view(-1) for p in wrapped.parameters() if p.grad is not None])

    alone = model()
    alone(torch.randn(64, SIZE, generator=torch.Generator().manual_seed(2))).pow(
        2
    ).mean().backward()
    expected = torch.cat([p.grad.view(-1) for p in alone.parameters() if p.grad is not None])
    for found in in_turn(program, 64):
        torch.testing.assert_close(found, expected)
