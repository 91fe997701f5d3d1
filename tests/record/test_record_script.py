"""Programs are functions, found by name and file, or scripts, which also run outside of a Run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
import torch.distributed as dist
from torch import nn

from pytest_trainsafe.core.rank import Rank
from pytest_trainsafe.launch.loading import run_script
from pytest_trainsafe.launch.task import Script
from pytest_trainsafe.record import current, program
from pytest_trainsafe.record.clock import ProgramError
from pytest_trainsafe.record.context import Context
from pytest_trainsafe.record.current import context
from pytest_trainsafe.trace.reader import Trace

SCRIPT = """
import sys
import torch
from pytest_trainsafe import context

ctx = context()
assert context() is ctx
model = torch.nn.Linear(3, 2).to(ctx.device, ctx.dtype)
ctx.initialize(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
ctx.watch(model, optimizer)
steps = []
for _ in range(int(sys.argv[1])):
    with ctx.step() as number:
        for index in ctx.microbatches(2):
            with ctx.microbatch(index):
                loss = model(torch.ones(4, 3, dtype=ctx.dtype)).square().sum()
                ctx.loss(loss)
                loss.backward()
        torch.distributed.all_reduce(model.weight.grad, group=ctx.group("dp"))
        ctx.grad_norm(1.0)
        optimizer.step()
        optimizer.zero_grad()
    steps.append(number)
print(__name__, steps, ctx.rank, ctx.world_size, ctx.coordinates, ctx.dtype)
torch.distributed.destroy_process_group()
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train_it.py"
    path.write_text(SCRIPT)
    return path


@pytest.fixture(autouse=True)
def _arguments_and_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restores sys.argv and sys.path, which a script changes."""
    monkeypatch.setattr(sys, "argv", ["pytest"])
    monkeypatch.setattr(sys, "path", list(sys.path))


def test_a_script_is_recorded(
    assign: Any, script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assignment = assign(script=str(script), script_args=("2",), dtype="float64")
    result = program.run(msgspec.to_builtins(assignment))
    assert result["seconds"] > 0
    trace = Trace.open(assignment.trace)
    assert len(trace.ranks[0].steps) == 2
    where = "{'tp': 0, 'cp': 0, 'dp': 0, 'pp': 0}"
    assert capsys.readouterr().out == f"__main__ [0, 1] 0 1 {where} torch.float64\n"
    # After the Run, context() returns the context outside of any Run.
    assert context().dtype == torch.float32


def test_a_script_runs_outside_of_a_run_and_writes_no_files(
    script: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(current, "_alone", None)
    monkeypatch.chdir(script.parent)
    run_script(Script(str(script), ("3",)))
    assert capsys.readouterr().out.startswith("__main__ [0, 1, 2] 0 1 ")
    assert [path.name for path in script.parent.iterdir()] == ["train_it.py"]


def test_the_context_of_a_script_that_failed_is_discarded(assign: Any, tmp_path: Path) -> None:
    path = tmp_path / "fails.py"
    path.write_text("raise ValueError('my own')\n")
    with pytest.raises(ValueError, match="my own"):
        program.run(msgspec.to_builtins(assign(script=str(path))))
    assert context().point.world_size == 1
    assert type(context()._recorder).__name__ == "Unrecorded"


def test_a_script_without_steps_is_refused(assign: Any, tmp_path: Path) -> None:
    path = tmp_path / "idle.py"
    path.write_text("pass\n")
    with pytest.raises(ProgramError, match=r"idle\.py never called ctx\.step"):
        program.run(msgspec.to_builtins(assign(script=str(path))))


def trains(ctx: Context, scale: float = 1.0) -> None:
    """The program of the next test, found by name in this file."""
    model = nn.Linear(3, 2, bias=False)
    ctx.initialize(model)
    ctx.watch(model)
    group = ctx.group("tp")
    with ctx.step() as step, ctx.microbatch(5) as index:
        assert (step, index) == (0, 5)
        ctx.loss(scale * model(torch.ones(1, 3)).sum())
    assert dist.get_world_size(group) == 1


def test_a_function_is_found_by_name_and_gets_its_arguments(assign: Any) -> None:
    losses = []
    for scale in (1.0, 4.0):
        assignment = assign(
            program=f"{__name__}:trains", file=__file__, arguments={"scale": scale}, seed=3
        )
        program.run(msgspec.to_builtins(assignment))
        trace = Trace.open(assignment.trace)
        [(id, event)] = [i for i in trace.ranks[0].tensors.items() if i[0].kind == "loss"]
        assert id.microbatch == 5
        losses.append(trace.load(0, event))
        assert not dist.is_initialized()
    assert torch.equal(losses[1], 4 * losses[0])


def test_misuse_of_the_context_outside_of_a_run_is_an_error() -> None:
    ctx = context()
    with (
        pytest.raises(ProgramError, match=r"ctx\.microbatch was entered outside ctx\.step"),
        ctx.microbatch(0),
    ):
        pass
    with ctx.step(), ctx.microbatch(0):
        ctx.loss(torch.ones(()))


def test_micro_batches_are_divided_among_the_dp_ranks(
    assign: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pytest_trainsafe.record.unrecorded import Unrecorded

    shares = []
    for rank in range(4):
        ctx = Context(assign(point={"tp": 2, "dp": 2}).spec, Unrecorded(), Rank(rank))
        shares.append(list(ctx.microbatches(6)))
    assert shares == [[0, 1, 2], [0, 1, 2], [3, 4, 5], [3, 4, 5]]
