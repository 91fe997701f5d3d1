"""Torch's data parallel wrappers are detected, with the axes over which they average gradients.

A fake process group replaces the other ranks: reduced gradients have meaningless values, but
values recorded before the reduction are right.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._composable import replicate_with_fsdp
from torch.distributed._composable.replicate import DDP, replicate
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    FullyShardedDataParallel,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore

from pytest_trainsafe.core.layout import Scaled
from pytest_trainsafe.record.clock import ProgramError
from pytest_trainsafe.record.context import Context

X = torch.linspace(-1, 1, 24).reshape(2, 4, 3)

Wrap = Callable[[Context, nn.Module], tuple[nn.Module, nn.Module]]


def small() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def train_wrapped(wrap: Wrap, annotations: Any = None, late: bool = False) -> Any:
    """One micro-batch; `wrap` returns the model to call and the model to watch."""

    def train(ctx: Context) -> None:
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ctx.point.world_size)
        model = small()
        called, watched = (model, model) if late else wrap(ctx, model)
        optimizer = torch.optim.SGD(watched.parameters(), lr=0.1)
        ctx.watch(watched, optimizer, annotations)
        if late:
            called, _ = wrap(ctx, model)
        for module in (*called.modules(), *model.modules()):
            # A fake group gives no results to the hooks of DistributedDataParallel.
            if isinstance(module, DistributedDataParallel):
                module.require_backward_grad_sync = False
            if isinstance(module, DDP):
                module.set_requires_gradient_sync(False)
        with ctx.step():
            with ctx.microbatch(0):
                called(X[0]).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    return train


def ddp(ctx: Context, model: nn.Module) -> tuple[nn.Module, nn.Module]:
    wrapped = DistributedDataParallel(model, process_group=ctx.group("dp"))
    return wrapped, wrapped


def inner(ctx: Context, model: nn.Module) -> tuple[nn.Module, nn.Module]:
    wrapped, _ = ddp(ctx, model)
    return wrapped, wrapped.get_submodule("module")


def inside(ctx: Context, model: nn.Module) -> tuple[nn.Module, nn.Module]:
    model[0], _ = ddp(ctx, model[0])  # type: ignore[operator, index]
    return model, model


class Beside(nn.Module):
    """Holds modules that the program calls one by one, and has no forward."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleDict({"net": model})
        self.average = small().requires_grad_(False)


def in_container(ctx: Context, model: nn.Module) -> tuple[nn.Module, nn.Module]:
    wrapped, _ = ddp(ctx, model)
    return wrapped, Beside(wrapped)


def inner_in_container(ctx: Context, model: nn.Module) -> tuple[nn.Module, nn.Module]:
    wrapped, module = inner(ctx, model)
    return wrapped, Beside(module)


def replicated(ctx: Context, model: nn.Module) -> tuple[nn.Module, nn.Module]:
    return replicate(model, process_group=ctx.group("dp")), model


def replicated_on_a_mesh(ctx: Context, model: nn.Module) -> tuple[nn.Module, nn.Module]:
    replicate(model[0], device_mesh=ctx.mesh["dp"])  # type: ignore[index]
    return model, model


def replicated_by_fsdp(ctx: Context, model: nn.Module) -> tuple[nn.Module, nn.Module]:
    replicate_with_fsdp.replicate(model, mesh=ctx.mesh["dp"])
    return model, model


def replicated_with(hook: Any) -> Wrap:
    def wrap(ctx: Context, model: nn.Module) -> tuple[nn.Module, nn.Module]:
        called, watched = replicated(ctx, model)
        called.register_comm_hook(None, hook)  # type: ignore[operator]
        return called, watched

    return wrap


def fsdp(ctx: Context, model: nn.Module) -> tuple[nn.Module, nn.Module]:
    fully_shard(model[0], mesh=ctx.mesh["dp"])  # type: ignore[index]
    fully_shard(model, mesh=ctx.mesh["dp"])
    return model, model


def fsdp_over_a_checkpoint_wrapper(ctx: Context, model: nn.Module) -> tuple[nn.Module, nn.Module]:
    model[0] = checkpoint_wrapper(model[0])  # type: ignore[index, operator]
    return fsdp(ctx, model)


def fsdp_inside_a_checkpoint_wrapper(ctx: Context, model: nn.Module) -> tuple[nn.Module, nn.Module]:
    fsdp(ctx, model)
    model[0] = checkpoint_wrapper(model[0])  # type: ignore[index, operator]
    return model, model


def fsdp_over_cp(ctx: Context, model: nn.Module) -> tuple[nn.Module, nn.Module]:
    mesh = ctx.mesh["dp", "cp"]._flatten("dp_cp")
    fully_shard(model, mesh=mesh)
    return model, model


def hybrid(ctx: Context, model: nn.Module) -> tuple[nn.Module, nn.Module]:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    fully_shard(model, mesh=mesh)
    return model, model


def divided_by(factor: float) -> Wrap:
    def wrap(ctx: Context, model: nn.Module) -> tuple[nn.Module, nn.Module]:
        sharded: Any = fully_shard(model, mesh=ctx.mesh["dp"])
        sharded.set_gradient_divide_factor(factor)
        sharded.set_force_sum_reduction_for_comms(True)
        return sharded, model

    return wrap


def one_module_summed(ctx: Context, model: nn.Module) -> tuple[nn.Module, nn.Module]:
    fsdp(ctx, model)
    inner: Any = model[0]  # type: ignore[index]
    fully_shard(model[1], mesh=ctx.mesh["dp"])  # type: ignore[index]
    inner.set_gradient_divide_factor(1.0)
    return model, model


def hooked(hook: Any) -> Wrap:
    def wrap(ctx: Context, model: nn.Module) -> tuple[nn.Module, nn.Module]:
        wrapped, _ = ddp(ctx, model)
        wrapped.register_comm_hook(None, hook)  # type: ignore[operator]
        return wrapped, wrapped

    return wrap


def sums(state, bucket):  # DDP reads annotations, as classes
    work = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
    return work.then(lambda done: done.value()[0])


def averaged_over(run: Any, kind: str) -> set[str]:
    events = [event for id, event in run.rank.tensors.items() if id.kind == kind]
    assert events
    found = [{p.axis for p in event.layout if isinstance(p, Scaled)} for event in events]
    assert all(each == found[0] for each in found)
    return found[0]


DP, BOTH = {"dp": 2}, {"dp": 2, "cp": 2}


@pytest.mark.parametrize(
    ("wrap", "point", "axes"),
    [
        (ddp, DP, {"dp"}),
        (inner, DP, {"dp"}),
        (inside, DP, {"dp"}),
        (in_container, DP, {"dp"}),
        (inner_in_container, DP, {"dp"}),
        (ddp, {"dp": 2, "tp": 2}, {"dp"}),
        (ddp, BOTH, {"dp"}),
        (ddp, {"tp": 2}, set()),
        (fsdp, DP, {"dp"}),
        (fsdp_over_cp, BOTH, {"dp", "cp"}),
        (hybrid, {"dp": 4}, {"dp"}),
        (divided_by(2.0), DP, {"dp"}),
        (divided_by(1.0), DP, set()),
        (one_module_summed, DP, {"dp"}),
        (divided_by(12.0), DP, set()),
        (hooked(sums), DP, set()),
        (replicated, BOTH, {"dp"}),
        (replicated_on_a_mesh, {"dp": 2, "tp": 2}, {"dp"}),
        (replicated_by_fsdp, DP, {"dp"}),
        (replicated_with(sums), DP, set()),
        (lambda ctx, model: (model, model), DP, set()),
    ],
    ids=[
        *("ddp", "its module", "a part", "in a container", "its module in a container"),
        *("beside tp", "beside cp", "of one rank", "fsdp"),
        *("fsdp over cp", "hybrid", "divided by dp", "not divided", "in one module"),
        "by something else",
        "a hook that sums",
        *("replicate", "replicate of a part", "replicate by FSDP2", "replicate with a hook"),
        "no wrapper",
    ],
)
def test_gradients_are_recorded_as_scaled_over_the_axes_that_a_wrapper_averages(
    record: Any, wrap: Wrap, point: dict[str, int], axes: set[str]
) -> None:
    run = record(train_wrapped(wrap), point=point)
    assert averaged_over(run, "param_grad") == axes
    assert averaged_over(run, "activation_grad") == axes
    assert averaged_over(run, "main_grad") == set()
    assert len(run.rank.note("averages")) == bool(axes)


def test_a_communication_hook_of_torch_is_known_to_average(record: Any) -> None:
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    run = record(train_wrapped(hooked(allreduce_hook)), point=DP)
    assert averaged_over(run, "param_grad") == {"dp"}


@pytest.mark.parametrize("wrap", [ddp, replicated, replicated_on_a_mesh])
def test_a_wrapper_applied_after_ctx_watch_is_detected(record: Any, wrap: Wrap) -> None:
    run = record(train_wrapped(wrap, late=True), point=DP)
    assert averaged_over(run, "param_grad") == {"dp"}


@pytest.mark.parametrize(
    ("wrap", "name"),
    [
        (ddp, "DistributedDataParallel"),
        (replicated, "replicate"),
        (replicated_by_fsdp, "replicate"),
        (fsdp, "fully_shard"),
    ],
)
def test_the_trace_names_the_wrapper_that_averages_gradients(
    record: Any, wrap: Wrap, name: str
) -> None:
    assert record(train_wrapped(wrap), point=DP).rank.note("averages") == [name]


@pytest.mark.parametrize("wrap", [replicated, replicated_by_fsdp])
def test_a_replicated_module_is_described_by_its_original_class(record: Any, wrap: Wrap) -> None:
    assert record(train_wrapped(wrap), point=DP).rank.modules[""].cls == "Sequential"


@pytest.mark.parametrize("axes", [[], ["cp"]])
def test_gradient_annotations_take_precedence_over_detected_wrappers(
    record: Any, axes: list[str]
) -> None:
    annotations = {"gradients": {"mean": axes}}
    run = record(train_wrapped(ddp, annotations), point=BOTH)
    assert averaged_over(run, "param_grad") == {*axes}
    assert run.rank.note("averages") == []


@pytest.mark.parametrize(
    "wrap",
    [
        fsdp,
        fsdp_over_a_checkpoint_wrapper,
        fsdp_inside_a_checkpoint_wrapper,
        hybrid,
        fsdp_over_cp,
    ],
)
def test_micro_batch_gradients_under_fsdp2_are_recorded_unsharded(record: Any, wrap: Wrap) -> None:
    points: dict[Wrap, dict[str, int]] = {hybrid: {"dp": 4}, fsdp_over_cp: BOTH}
    point = points.get(wrap, DP)
    run = record(train_wrapped(wrap), point=point)
    shapes = {
        id.path: event.shape for id, event in run.rank.tensors.items() if id.kind == "param_grad"
    }
    assert shapes == {"0.weight": (4, 3), "0.bias": (4,), "2.weight": (2, 4), "2.bias": (2,)}
    assert run.rank.note("local") == []


def test_a_gradient_that_fsdp2_reduces_before_it_can_be_recorded_is_listed(record: Any) -> None:
    """The module's forward never runs; another method is registered with FSDP2."""

    class Second(nn.Linear):
        def other(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.weight

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(3, 4)
            self.second = Second(4, 4, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second.other(self.first(x))

    def wrap(ctx: Context, model: nn.Module) -> tuple[nn.Module, nn.Module]:
        both = Both()
        fully_shard(both.second, mesh=ctx.mesh["dp"])
        register_fsdp_forward_method(both.second, "other")
        fully_shard(both, mesh=ctx.mesh["dp"])
        return both, both

    run = record(train_wrapped(wrap), point=DP)
    assert {*run.paths("param_grad")} == {"first.weight", "first.bias"}
    assert run.rank.note("local") == ["param_grad second.weight"]
    # The model that `wrap` is given is not used, and so not watched.
    reduced = [text for text in run.rank.note("not_compared") if "Sequential" not in text]
    assert reduced == [
        (
            "the micro-batch gradients of second.weight, which FSDP2 reduced before they could be "
            "recorded"
        )
    ]


def test_fsdp1_is_refused_with_the_advice_to_use_fully_shard(record: Any) -> None:
    class Flat(FullyShardedDataParallel):
        """Skips FSDP1's __init__, which requires an accelerator."""

        named_parameters = nn.Module.named_parameters

        def __init__(self, group: Any) -> None:
            nn.Module.__init__(self)
            self._fsdp_wrapped_module = small()
            self.process_group = group

    def train(ctx: Context) -> None:
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
        ctx.watch(nn.ModuleList([Flat(ctx.group("dp"))]))

    with pytest.raises(ProgramError, match=r"FSDP1.*not supported; shard .*fully_shard"):
        record(train, point=DP)


def test_the_input_of_a_forward_that_enters_the_microbatch_itself_is_recorded(record: Any) -> None:
    """As in Lightning, where the forward of a wrapper calls the module's training step."""

    class Stepping(nn.Module):
        def __init__(self, ctx: Context) -> None:
            super().__init__()
            self.inside = small()
            self.ctx = ctx

        def forward(self, x: torch.Tensor, index: int) -> torch.Tensor:
            with self.ctx.microbatch(index):
                return self.inside(x).square().sum()

    def train(ctx: Context) -> None:
        model = Stepping(ctx)
        ctx.watch(model, torch.optim.SGD(model.parameters(), lr=0.1))
        with ctx.step():
            for index in range(2):
                model(X[index], index).backward()
            with ctx.microbatch(2):
                model.inside(X[0]).sum().backward()

    run = record(train)
    assert [event.microbatch for event in run.rank.inputs] == [0, 1]
    assert run.rank.inputs[0].hashes != run.rank.inputs[1].hashes
