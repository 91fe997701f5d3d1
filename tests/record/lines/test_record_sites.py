"""The lines with which a program constructs and drives its training are recorded, once each."""

from __future__ import annotations

import contextlib
import functools
import linecache
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import distributed_c10d as c10d
from torch.distributed._composable_state import _State
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from pytest_trainsafe.record.lines.source import described_class, held_functions
from pytest_trainsafe.record.lines.source import replaced_forward as found_forward
from pytest_trainsafe.trace.events import decoder, fault_of
from pytest_trainsafe.trace.facts import Reduction, Site
from pytest_trainsafe.trace.run_spec import Rewrite
from tests.support.record import replaced_forward

REWRITE = {"activation 0.output 0": Rewrite((4, 2), 0.0, 1.0)}


def sites(run: Any) -> dict[str, list[str]]:
    """The source of the recorded lines, which are all in this file, by what the lines do."""
    found: dict[str, list[str]] = {}
    for site in run.rank.events_of(Site):
        file, _, line = site.at.rpartition(":")
        assert Path(file).name == Path(__file__).name
        found.setdefault(site.what, []).append(linecache.getline(file, int(line)).strip())
    return found


def train(ctx: Any) -> None:
    model = nn.Sequential(nn.Linear(3, 2)).to(ctx.dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ctx.watch(model, optimizer)
    for _ in range(2):
        with ctx.step():
            for index in ctx.microbatches(2):
                with ctx.microbatch(index):
                    loss = model(torch.ones(4, 3, dtype=ctx.dtype)).square().sum()
                    ctx.loss(loss)
                    loss.backward()
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.grad.mul_(0.5)
            ctx.grad_norm(1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)


def test_lines_that_call_model_loss_backward_and_optimizer_are_recorded_once(record: Any) -> None:
    assert sites(record(train)) == {
        "watch": ["ctx.watch(model, optimizer)"],
        "optimizer": ["optimizer = torch.optim.SGD(model.parameters(), lr=0.1)"],
        "model": ["loss = model(torch.ones(4, 3, dtype=ctx.dtype)).square().sum()"],
        "loss": ["ctx.loss(loss)"],
        "backward": ["loss.backward()"],
        "norm": ["ctx.grad_norm(1.0)"],
        "step": ["optimizer.step()"],
    }


def test_the_line_that_calls_a_model_which_enters_the_microbatch_itself_is_recorded(
    record: Any,
) -> None:
    """As in Lightning, where the module's training step enters the micro-batch."""

    class Marking(nn.Sequential):
        ctx: Any

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with self.ctx.microbatch(0):
                return super().forward(x)

    def marked(ctx: Any) -> None:
        model = Marking(nn.Linear(3, 2)).to(ctx.dtype)
        model.ctx = ctx
        ctx.watch(model, torch.optim.SGD(model.parameters(), lr=0.1))
        with ctx.step():
            out = model(torch.ones(4, 3, dtype=ctx.dtype))
            with contextlib.ExitStack() as stack:
                stack.callback(out.sum().backward)

    found = sites(record(marked))
    assert found["model"] == ["out = model(torch.ones(4, 3, dtype=ctx.dtype))"]
    # Not a line of contextlib.
    assert found["backward"] == ["with contextlib.ExitStack() as stack:"]


def test_localisation_runs_record_the_lines_that_change_gradients(record: Any) -> None:
    """Lines that clear gradients, and the backward that computes them, do not count as changes."""
    run = record(train, rewrite=REWRITE)
    assert sites(run)["write"] == ["parameter.grad.mul_(0.5)"]


def test_the_lines_that_apply_data_parallel_wrappers_are_recorded(
    record: Any, tmp_path: Path
) -> None:
    class FSDPState(_State):
        """Has the name of the state that torch keeps for a module given to `fully_shard`."""

    def wrapped(ctx: Any) -> None:
        store = f"file://{tmp_path}/store"
        dist.init_process_group("gloo", init_method=store, rank=0, world_size=1)
        DistributedDataParallel(nn.Linear(2, 2))
        FSDPState()
        train(ctx)

    run = record(wrapped)
    assert sites(run)["wrapper"] == [
        "DistributedDataParallel(nn.Linear(2, 2))",
        "FSDPState()",
    ]
    names = [site.name for site in run.rank.events_of(Site) if site.what == "wrapper"]
    assert names == ["DistributedDataParallel", "fully_shard"]


def test_the_line_that_creates_a_process_group_is_recorded(record: Any, tmp_path: Path) -> None:
    def grouped(ctx: Any) -> None:
        store = f"file://{tmp_path}/store"
        dist.init_process_group("gloo", init_method=store, rank=0, world_size=1)
        dist.new_group([0])
        train(ctx)

    assert sites(record(grouped))["group"] == ["dist.new_group([0])"]


def test_patched_constructors_are_restored_after_a_run(record: Any) -> None:
    def watched() -> list[object]:
        classes = torch.optim.Optimizer, DistributedDataParallel, _State
        return [*(each.__init__ for each in classes), dist.new_group, c10d.new_group]

    before = watched()
    record(train)
    assert watched() == before
    assert "__init__" not in vars(_State)


def test_the_line_of_a_forward_set_on_an_instance_is_found() -> None:
    linear = nn.Linear(2, 2)
    assert found_forward(linear) == ""
    linear.forward = replaced_forward.Doubled(linear)  # type: ignore[assignment, method-assign]
    assert found_forward(linear) == f"{replaced_forward.__file__}:8"
    linear.forward = functools.partial(replaced_forward.doubled, linear)  # type: ignore[method-assign]
    assert found_forward(linear) == f"{replaced_forward.__file__}:18"


def test_the_line_of_a_forward_that_another_file_set_on_a_class_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Linear(nn.Linear):
        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            return super().forward(hidden)

    assert found_forward(Linear(2, 2)) == ""

    class Other(nn.Linear):
        pass

    monkeypatch.setattr(Other, "forward", replaced_forward.doubled)
    assert found_forward(Other(2, 2)) == f"{replaced_forward.__file__}:18"


def test_a_checkpoint_around_a_forward_is_not_a_replaced_forward() -> None:
    linear = nn.Linear(2, 2)
    linear.forward = functools.partial(checkpoint, linear.forward, use_reentrant=False)  # type: ignore[method-assign]
    assert found_forward(linear) == ""


def test_the_lines_of_functions_of_other_files_that_a_module_has_are_found() -> None:
    class Layers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.here = sites
            self.torchs = nn.functional.gelu
            self.checkpointed = checkpoint

    layers = Layers()
    assert held_functions(layers) == ()
    vars(layers)["run"] = functools.partial(replaced_forward.doubled, layers)
    vars(layers)["forward"] = replaced_forward.doubled
    assert held_functions(layers) == (("run", f"{replaced_forward.__file__}:18"),)


def test_a_class_derived_by_a_parametrization_is_described_by_its_base_class() -> None:
    linear = nn.Linear(2, 2)
    nn.utils.parametrize.register_parametrization(linear, "weight", nn.Identity())
    assert type(linear) is not nn.Linear
    assert described_class(type(linear)) is nn.Linear


def test_the_trace_has_the_line_of_a_replaced_forward(record: Any) -> None:
    def replaced(ctx: Any) -> None:
        model = nn.Sequential(nn.Linear(3, 2)).to(ctx.dtype)
        model[0].forward = replaced_forward.Doubled(model[0])
        ctx.watch(model, torch.optim.SGD(model.parameters(), lr=0.1))
        with ctx.step(), ctx.microbatch(0):
            model(torch.ones(4, 3, dtype=ctx.dtype)).sum().backward()

    modules = record(replaced).rank.modules
    assert modules["0"].forward == f"{replaced_forward.__file__}:8"
    assert modules[""].forward == ""


@pytest.mark.parametrize(
    "line",
    [
        '{"type":"site","what":"model","at":"no line"}',
        '{"type":"site","what":"cake","at":"f.py:1"}',
        '{"type":"set_up","module":"fc","at":"no line"}',
        '{"type":"made","what":"loss","name":"","at":"f.py:1\\n"}',
        '{"type":"made","what":"cake","name":"","at":"f.py:1"}',
        '{"type":"caller","module":"fc","by":"","at":"no line"}',
        '{"type":"reduction","call":"all_reduce","axes":["dp"],"site":"f.py:1\\n","caller":""}',
        '{"type":"reduction","call":"all_reduce","axes":"dp","site":"f.py:1","caller":""}',
    ],
)
def test_a_malformed_event_of_a_source_line_is_refused(line: str) -> None:
    try:
        fault = fault_of(decoder().decode(line))
    except msgspec.ValidationError:
        return
    assert "not a line" in fault


def test_valid_site_and_reduction_events_are_accepted() -> None:
    for line in (Site("model", "f.py:1"), Reduction("all_reduce", ("dp",), "f.py:1", "")):
        assert fault_of(decoder().decode(msgspec.json.encode(line))) == ""


class Halving(torch.optim.Optimizer):
    """An optimizer of the project's own, whose step calls a function."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        held = [parameter for parameter in self.param_groups[0]["params"]]  # noqa: C416
        for parameter in sorted(held, key=lambda each: each.numel()):
            halve(parameter)


def halve(parameter: torch.Tensor) -> None:
    with torch.no_grad():
        parameter.mul_(0.5)


@pytest.mark.parametrize("rewrite", [REWRITE, {}])
def test_a_localisation_records_what_the_programs_own_step_calls(record: Any, rewrite: Any) -> None:
    def train(ctx: Any) -> None:
        model = nn.Linear(3, 2)
        optimizer = Halving(model.parameters(), {})
        ctx.watch(model, optimizer)
        with ctx.step(), ctx.microbatch(0):
            model(torch.ones(4, 3)).sum().backward()
            optimizer.step()

    run = record(train, rewrite=rewrite)

    names = [site.name for site in run.rank.events_of(Site) if site.what == "steps"]
    assert names == (["Halving.step", "halve"] if rewrite else [])
