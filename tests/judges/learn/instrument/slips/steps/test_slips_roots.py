"""Slips in what backwards begin with are noticed."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.support.learn.slips import loss_of, net, sgd, slips_of


@pytest.mark.parametrize(
    ("kind", "slips"),
    [
        ("twice", ["backward-twice"]),
        ("twice, cleared", []),
        ("two losses", []),
        ("two parts", []),
        ("of a number", ["loss-without-graph"]),
    ],
)
def test_the_backward_of_a_loss(kind: str, slips: list[str]) -> None:
    def program() -> None:
        model = net()
        optimizer = sgd(model)
        for _ in range(2):
            optimizer.zero_grad()
            loss = loss_of(model)
            if kind == "two parts":
                loss.backward(inputs=list(model[0].parameters()), retain_graph=True)
                loss.backward(inputs=list(model[3].parameters()))
            elif kind == "of a number":
                torch.tensor(loss.item(), requires_grad=True).backward()
            else:
                loss.backward(retain_graph=kind.startswith("twice"))
                if kind == "two losses":
                    loss = loss_of(model)
                elif kind == "twice, cleared":
                    optimizer.zero_grad()
                loss.backward()
            optimizer.step()

    own = ("backward-twice", "loss-without-graph")
    assert [each for each in slips_of(program) if each in own] == slips


@pytest.mark.parametrize(
    ("windows", "slips"), [((1, 4, 4, 4), ["window-short"]), ((4, 4, 4, 2), []), ((2, 2, 2, 2), [])]
)
def test_the_first_window_of_micro_batches(windows: tuple[int, ...], slips: list[str]) -> None:
    def program() -> None:
        model = net()
        optimizer = sgd(model)
        for count in windows:
            optimizer.zero_grad()
            for _ in range(count):
                (loss_of(model) / 4).backward()
            optimizer.step()

    assert [each for each in slips_of(program) if each.startswith("window-s")] == slips


@pytest.mark.parametrize("both", [False, True])
def test_a_second_loss_that_is_not_scaled(both: bool) -> None:
    def program() -> None:
        model = net()
        optimizer, scaler = sgd(model), torch.amp.GradScaler("cpu", init_scale=16.0)
        for _ in range(2):
            optimizer.zero_grad()
            scaler.scale(loss_of(model)).backward()
            loss = loss_of(model)
            (scaler.scale(loss) if both else loss).backward()
            scaler.step(optimizer)
            scaler.update()

    assert slips_of(program) == ["partly-scaled"] * (not both)


@pytest.mark.parametrize("every", [False, True])
def test_an_average_that_is_updated_for_each_micro_batch(every: bool) -> None:
    def program() -> None:
        model = net()
        optimizer, average = sgd(model), torch.optim.swa_utils.AveragedModel(model)
        for _ in range(2):
            optimizer.zero_grad()
            for _ in range(2):
                (loss_of(model) / 2).backward()
                if every:
                    average.update_parameters(model)
            optimizer.step()
            average.update_parameters(model)

    assert ("averaged-again" in slips_of(program)) == every


@pytest.mark.parametrize(
    ("kind", "slips"),
    [("left out", ["loss-unused"]), ("added", []), ("one by one", []), ("not graded", [])],
)
def test_a_second_loss(kind: str, slips: list[str]) -> None:
    def program() -> None:
        model = net()
        optimizer = sgd(model)
        for _ in range(3):
            optimizer.zero_grad()
            y = model(torch.randn(8, 4))
            loss, labels = y.square().mean(), torch.arange(8) % 2
            with torch.set_grad_enabled(kind != "not graded"):
                more = F.cross_entropy(y, labels)
            if kind == "one by one":
                more.backward(retain_graph=True)
            (loss + more if kind == "added" else loss).backward()
            optimizer.step()

    assert slips_of(program) == slips
