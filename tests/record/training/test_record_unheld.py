"""Which parameters no optimizer holds, and in localisation Runs the lines that change them."""

from __future__ import annotations

import copy
import linecache
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from pytest_trainsafe.record.training.unheld import unheld
from pytest_trainsafe.trace.facts import Changed, Unheld
from pytest_trainsafe.trace.run_spec import Rewrite

X = torch.linspace(-1, 1, 12).reshape(4, 3) ** 3

REWRITE = {"activation net.output 0": Rewrite((4, 2), 0.0, 1.0)}

AVERAGE = ("average.weight", "average.bias")


@torch.no_grad()
def follow(ctx: Any, average: nn.Module, net: nn.Module, how: str) -> None:
    pairs = [*zip(average.parameters(), net.parameters(), strict=True)]
    if how == "foreach":
        torch._foreach_lerp_([mine for mine, _ in pairs], [its for _, its in pairs], 0.25)
    for mine, its in pairs:
        if how == "lerp":
            mine.lerp_(its, 0.25)
        if how == "view":
            mine.data[0].copy_(its[0])
        if how == "broadcast":
            dist.broadcast(mine, group_src=0, group=ctx.group("dp"))
        if how == "copy":
            mine.detach().clone().add_(1.0)  # changes a copy


def train(how: str, first: bool = False, watch_average: bool = True) -> Any:
    """Two steps; the average follows the net before or after the optimizer's step."""

    def run(ctx: Any) -> None:
        net = nn.Linear(3, 2).to(ctx.dtype)
        average = copy.deepcopy(net).requires_grad_(False)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        models = {"net": net, "average": average} if watch_average else {"net": net}
        ctx.watch(models, optimizer)
        for _ in range(2):
            with ctx.step():
                for index in ctx.microbatches(1):
                    with ctx.microbatch(index):
                        net(X.to(ctx.dtype)).square().sum().backward()
                if first:
                    follow(ctx, average, net, how)
                optimizer.step()
                if not first:
                    follow(ctx, average, net, how)
                optimizer.zero_grad()

    return run


def changes(run: Any) -> list[Changed]:
    return list(run.rank.events_of(Changed))


def code_at(line: str) -> str:
    file, _, number = line.rpartition(":")
    return linecache.getline(file, int(number)).strip()


@pytest.mark.parametrize(
    ("how", "operation", "numbers"),
    [
        ("lerp", "lerp_", (0.25,)),
        ("foreach", "_foreach_lerp_", (0.25,)),
        ("view", "copy_", ()),
        ("broadcast", "broadcast_", ()),
    ],
)
def test_the_line_that_changes_an_average_is_recorded_with_the_line_of_the_loop(
    record: Any, how: str, operation: str, numbers: tuple[float, ...]
) -> None:
    found = changes(record(train(how), rewrite=REWRITE))
    assert [(each.step, each.operation, each.numbers) for each in found] == [
        (0, operation, numbers),
        (1, operation, numbers),
    ]
    assert all(each.parameters == AVERAGE and each.stepped for each in found)
    called = {"foreach": "lerp", "view": "copy_", "lerp": "lerp_", "broadcast": "dist.broadcast"}
    assert called[how] in code_at(found[0].at)
    assert code_at(found[0].caller) == "follow(ctx, average, net, how)"


def test_a_change_before_the_optimizers_step_is_marked_as_such(record: Any) -> None:
    found = changes(record(train("lerp", first=True), rewrite=REWRITE))
    assert [each.stepped for each in found] == [False, False]


@pytest.mark.parametrize(
    ("program", "options"),
    [
        (train("lerp"), {}),
        (train("copy"), {"rewrite": REWRITE}),
        (train("lerp", watch_average=False), {"rewrite": REWRITE}),
    ],
)
def test_other_runs_copies_and_what_is_not_watched_record_no_line(
    record: Any, program: Any, options: Any
) -> None:
    """The optimizer's own changes are none either."""
    assert changes(record(program, **options)) == []


class Counting(nn.Linear):
    """Counts its calls, and has a bias that the program changes once a step."""

    shift: torch.Tensor
    calls: torch.Tensor

    def __init__(self) -> None:
        super().__init__(3, 2)
        self.register_buffer("shift", torch.zeros(2))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        output: torch.Tensor = super().forward(x)
        return output + self.shift


def rebalance(net: Counting) -> None:
    net.shift.add_(0.5)


@pytest.mark.parametrize("options", [{}, {"rewrite": REWRITE}])
def test_the_line_that_changes_a_buffer_is_recorded_in_the_runs_of_a_localisation(
    record: Any, options: Any
) -> None:
    def run(ctx: Any) -> None:
        net = Counting().to(ctx.dtype)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        ctx.watch({"net": net}, optimizer)
        with ctx.step():
            for index in ctx.microbatches(1):
                with ctx.microbatch(index):
                    net(X.to(ctx.dtype)).square().sum().backward()
            optimizer.step()
            rebalance(net)

    found = {each.parameters: each for each in changes(record(run, **options))}
    if not options:
        assert found == {}
        return
    assert set(found) == {("net.calls",), ("net.shift",)}
    line = found["net.shift",]
    assert (line.operation, line.stepped, line.numbers) == ("add_", True, (0.5,))
    assert code_at(line.at) == "net.shift.add_(0.5)"
    assert code_at(line.caller) == "rebalance(net)"
    assert not found["net.calls",].stepped


@pytest.mark.parametrize("options", [{}, {"rewrite": REWRITE}])
def test_every_run_records_which_parameters_no_optimizer_holds(record: Any, options: Any) -> None:
    found = record(train("lerp"), **options).rank.events_of(Unheld)
    assert list(found) == [Unheld(AVERAGE)]


def test_what_an_optimizer_holds_is_known_only_if_it_holds_nothing_unknown() -> None:
    net, other = nn.Linear(3, 2), nn.Linear(3, 2)
    parameters = dict(net.named_parameters())

    def held_by(*tensors: torch.Tensor) -> Any:
        return torch.optim.SGD([*tensors], lr=0.1)

    class Own:
        """An optimizer without groups of parameters."""

        def step(self) -> None: ...

    assert unheld(held_by(net.weight, net.bias), parameters) == ()
    assert unheld(held_by(net.weight), parameters) == ("bias",)
    assert unheld([held_by(net.weight), held_by(net.bias)], parameters) == ()
    assert unheld(held_by(net.weight, other.weight), parameters) is None
    assert unheld([held_by(net.weight), Own()], parameters) is None
    assert unheld(None, parameters) is None

    master = net.bias.detach().clone()
    setattr(net.bias, "main_param", master)  # noqa: B010 (as Megatron-LM keeps it)
    assert unheld(held_by(net.weight, master), parameters) == ()


class Own(torch.optim.Optimizer):
    """An optimizer of the project, whose step changes parameters by lines of its own."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(0.1 * parameter.grad)


@pytest.mark.parametrize("make", [Own, lambda held: torch.optim.SGD(held, lr=0.1)])
@pytest.mark.parametrize("when", ["", "before", "after"])
@pytest.mark.parametrize("options", [{}, {"rewrite": REWRITE}])
def test_a_line_that_changes_what_an_optimizer_holds_outside_of_its_step_is_recorded(
    record: Any, options: Any, when: str, make: Any
) -> None:
    def run(ctx: Any) -> None:
        net = nn.Linear(3, 2).to(ctx.dtype)
        optimizer = make(net.parameters())
        ctx.watch({"net": net}, optimizer)
        with ctx.step():
            for index in ctx.microbatches(1):
                with ctx.microbatch(index):
                    net(X.to(ctx.dtype)).square().sum().backward()
            if when == "before":
                nudge(net)
            optimizer.step()
            if when == "after":
                nudge(net)
            optimizer.zero_grad()

    found = changes(record(run, **options))
    if not (options and when):
        assert found == []
        return
    [line] = found
    assert (line.operation, line.parameters) == ("add_", ("net.bias",))
    assert line.stepped is (when == "after")
    assert code_at(line.at) == "net.bias.add_(0.001)"
    assert code_at(line.caller) == "nudge(net)"


@torch.no_grad()
def nudge(net: nn.Linear) -> None:
    net.bias.add_(0.001)
