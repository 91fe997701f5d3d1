"""Gradients are also recorded before clipping, and torch's clip functions are restored."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad as torchs

# Imported before a recording starts: replacing attributes of torch would have no effect here.
from torch.nn.utils import (
    clip_grad_norm_,
    clip_grad_value_,
    clip_grads_with_norm_,
    get_total_norm,
)

from pytest_trainsafe.record.context import Context
from pytest_trainsafe.record.training import unclipped
from pytest_trainsafe.record.training.clipping import before_clip

X = [torch.linspace(-1, 1, 12).reshape(4, 3), torch.linspace(0, 3, 12).reshape(4, 3)]
LIMIT = 0.125
ONE = torch.tensor(1.0)


def gradients(model: nn.Module) -> list[Tensor]:
    found = []
    for parameter in model.parameters():
        assert parameter.grad is not None
        found.append(parameter.grad)
    return found


def by_norm(ctx: Context, model: nn.Module) -> None:
    clip_grad_norm_(model.parameters(), LIMIT)


def in_two_calls(ctx: Context, model: nn.Module) -> None:
    norm = get_total_norm(gradients(model))
    clip_grads_with_norm_(iter(list(model.parameters())), LIMIT, norm)


def by_value(ctx: Context, model: nn.Module) -> None:
    clip_grad_value_(model.parameters(), LIMIT)


def by_hand(ctx: Context, model: nn.Module) -> None:
    norm = get_total_norm(gradients(model))
    for parameter in model.parameters():
        parameter.grad *= LIMIT / norm  # type: ignore[operator]


def by_hand_as_it_says(ctx: Context, model: nn.Module) -> None:
    norm = torch.stack([grad.square().sum() for grad in gradients(model)]).sum().sqrt()
    ctx.before_clip(norm, LIMIT)
    for parameter in model.parameters():
        parameter.grad *= LIMIT / norm  # type: ignore[operator]


def by_a_framework(ctx: Context, model: nn.Module) -> None:
    before_clip(function="scale_gradients")
    for parameter in model.parameters():
        parameter.grad *= 0.5  # type: ignore[assignment, operator]


def one_by_one(ctx: Context, model: nn.Module) -> None:
    for parameter in model.parameters():
        clip_grad_norm_(parameter, LIMIT)


CLIPS: dict[Callable[[Context, nn.Module], None], tuple[list[str], bool]] = {
    by_norm: (["clip_grad_norm_"], True),
    in_two_calls: (["clip_grads_with_norm_"], True),
    by_value: (["clip_grad_value_"], False),
    by_hand: ([], False),
    by_hand_as_it_says: (["before_clip"], True),
    by_a_framework: (["scale_gradients"], False),
    one_by_one: (["clip_grad_norm_"], False),
}


def train_with(model: nn.Module, clip: Callable[[Context, nn.Module], object]) -> Any:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train(ctx: Context) -> None:
        ctx.watch(model, optimizer)
        for _ in range(2):
            with ctx.step():
                for index in range(2):
                    with ctx.microbatch(index):
                        model(X[index]).square().sum().backward()
                clip(ctx, model)
                optimizer.step()
                optimizer.zero_grad()

    return train


@pytest.mark.parametrize("clip", list(CLIPS), ids=lambda clip: clip.__name__)
def test_unclipped_gradients_are_recorded_as_the_sums_over_micro_batches(
    record: Any, clip: Any
) -> None:
    model = nn.Linear(3, 2)
    run = record(train_with(model, clip))

    functions, norm = CLIPS[clip]
    assert run.rank.note("clipped") == functions
    for step in range(2):
        terms = [run.get("param_grad", "weight", step=step, microbatch=i) for i in range(2)]
        assert torch.equal(run.get("unclipped_grad", "weight", step=step), terms[0] + terms[1])
        assert not torch.equal(run.get("main_grad", "weight", step=step), terms[0] + terms[1])
        if norm:
            every = [run.get("unclipped_grad", n, step=step) for n in ("weight", "bias")]
            found = run.get("grad_norm", "clip_norm", step=step)
            torch.testing.assert_close(found, get_total_norm(every))
    assert len(run.paths("grad_norm")) == 2 * norm
    kinds = list(dict.fromkeys(id.kind for id in run.rank.tensors if id.step == 1))
    assert kinds.index("unclipped_grad") < kinds.index("main_grad")


def test_a_norm_below_the_limit_is_recorded_as_the_limit(record: Any) -> None:
    """Such a norm has no effect, so it may differ from the reference's."""
    run = record(train_with(nn.Linear(3, 2), lambda _, m: clip_grad_norm_(m.parameters(), 1e6)))
    assert run.get("grad_norm", "clip_norm") == 1e6
    assert run.rank.note("clip_limit") == ["1000000.0"]


def test_the_norm_of_a_clip_with_an_infinite_limit_is_not_recorded(record: Any) -> None:
    def log_norm(_: Context, model: nn.Module) -> None:
        clip_grad_norm_(model.parameters(), float("inf"))

    assert record(train_with(nn.Linear(3, 2), log_norm)).paths("grad_norm") == []


def test_a_clip_between_micro_batches_records_no_unclipped_gradients(record: Any) -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train(ctx: Context) -> None:
        ctx.watch(model, optimizer)
        with ctx.step():
            for index in range(2):
                with ctx.microbatch(index):
                    model(X[index]).square().sum().backward()
                if index == 0:
                    clip_grad_norm_(model.parameters(), LIMIT)
            optimizer.step()

    run = record(train)
    assert run.paths("unclipped_grad") == run.paths("grad_norm") == run.rank.note("clipped") == []
    assert run.paths("main_grad") == ["weight", "bias"]


def test_a_norm_of_parameter_values_is_not_a_clip(record: Any) -> None:
    def of_values(_: Context, model: nn.Module) -> None:
        get_total_norm([p.detach() for p in model.parameters()])

    run = record(train_with(nn.Linear(3, 2), of_values))
    assert run.paths("unclipped_grad") == []


def test_invalid_arguments_raise_torchs_own_error(record: Any) -> None:
    def with_invalid_arguments(_: Context, model: nn.Module) -> None:
        clip_grads_with_norm_(model.parameters(), no_such_argument=1)  # type: ignore[call-arg]

    with pytest.raises(TypeError, match="no_such_argument"):
        record(train_with(nn.Linear(3, 2), with_invalid_arguments))


@pytest.mark.parametrize("fails", [False, True])
def test_the_clip_functions_of_torch_are_restored_after_a_run(record: Any, fails: bool) -> None:
    before = list(called())

    def clip(_: Context, model: nn.Module) -> None:
        assert list(called()) != before
        if fails:
            raise ValueError("planted")

    if fails:
        with pytest.raises(ValueError, match="planted"):
            record(train_with(nn.Linear(3, 2), clip))
    else:
        record(train_with(nn.Linear(3, 2), clip))
    assert list(called()) == before


def called() -> Iterator[object]:
    """The clip functions of torch, and the functions that their wrappers call."""
    for name in ("clip_grad_norm_", "_clip_grads_with_norm_", "clip_grad_value_"):
        function: Any = getattr(torchs, name)
        yield function
        yield from (cell.cell_contents for cell in function.__closure__ or ())


def test_clip_functions_work_outside_of_a_run() -> None:
    before_clip(norm=1.0, max_norm=2.0)
    model = nn.Linear(3, 2)
    model(X[0]).sum().backward()
    assert isinstance(clip_grad_norm_(model.parameters(), 1.0), Tensor)


@pytest.mark.parametrize("reports", [False, True])
def test_a_norm_that_the_program_reports_needs_no_other_report(
    record: Any, reports: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that clips by hand is told to report its norm, but only if it does not."""
    monkeypatch.setattr(unclipped, "clips_by_itself", lambda program: "train (train.py:1)")

    def by_hand(ctx: Context, model: nn.Module) -> None:
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        norm = torch.stack([each.norm() for each in gradients]).norm()
        for each in gradients:
            each.mul_((LIMIT / norm).clamp(max=1))
        if reports:
            ctx.grad_norm(norm)

    noted = record(train_with(nn.Linear(3, 2), by_hand)).rank.note("not_compared")
    assert [text.partition(";")[0] for text in noted] == (
        [] if reports else ["the norm by which train (train.py:1) seems to clip gradients"]
    )
