"""Slips between a backward and the step are noticed, and not in the program without them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.support.learn.slips import loss_of, net, sgd, slips_of, steps

clip = nn.utils.clip_grad_norm_


@pytest.mark.parametrize("wrong", [False, True])
def test_clipping_of_scaled_gradients(wrong: bool) -> None:
    def program() -> None:
        model = net()
        optimizer, scaler = sgd(model), torch.amp.GradScaler("cpu", init_scale=256.0)
        for _ in range(3):
            optimizer.zero_grad()
            scaler.scale(loss_of(model)).backward()
            if not wrong:
                scaler.unscale_(optimizer)
            clip(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()

    assert ("clipped-scaled" in slips_of(program)) == wrong
    assert wrong or slips_of(program) == []


@pytest.mark.parametrize("wrong", [False, True])
def test_a_step_past_the_scaler(wrong: bool) -> None:
    def program() -> None:
        model = net()
        optimizer, scaler = sgd(model), torch.amp.GradScaler("cpu", init_scale=256.0)
        for _ in range(2):
            optimizer.zero_grad()
            scaler.scale(loss_of(model)).backward()
            if wrong:
                optimizer.step()
            else:
                scaler.step(optimizer)
                scaler.update()

    assert slips_of(program) == ["stepped-scaled"] * wrong


@pytest.mark.parametrize("wrong", [False, True])
def test_a_scaler_that_is_made_anew(wrong: bool) -> None:
    def program() -> None:
        model = net()
        optimizer, scaler = sgd(model), torch.amp.GradScaler("cpu", init_scale=256.0)
        for _ in range(3):
            if wrong:
                scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
            optimizer.zero_grad()
            scaler.scale(loss_of(model)).backward()
            scaler.step(optimizer)
            scaler.update()

    assert slips_of(program) == ["scaler-renewed"] * wrong


@pytest.mark.parametrize("where", ["between", "early", "late"])
def test_where_gradients_are_clipped(where: str) -> None:
    def program() -> None:
        model = net()
        optimizer = sgd(model)
        for _ in range(4):
            loss = loss_of(model)
            if where == "early":
                clip(model.parameters(), 1.0)
            optimizer.zero_grad(set_to_none=False)
            loss.backward()
            if where == "between":
                clip(model.parameters(), 1.0)
            optimizer.step()
            if where == "late":
                clip(model.parameters(), 1.0)

    found = slips_of(program)
    assert found == ([] if where == "between" else ["clip-missed"])


@pytest.mark.parametrize("wrong", [False, True])
def test_clipping_of_each_micro_batch(wrong: bool) -> None:
    def program() -> None:
        model = net()
        optimizer = sgd(model)
        for _ in range(3):
            optimizer.zero_grad()
            for last in (False, True):
                (loss_of(model) / 2).backward()
                if wrong or last:
                    clip(model.parameters(), 1.0)
            optimizer.step()

    assert slips_of(program) == ["clipped-early"] * wrong


@pytest.mark.parametrize("wrong", [False, True])
def test_clipping_of_one_part(wrong: bool) -> None:
    def program() -> None:
        model = net()
        optimizer = sgd(model)
        for _ in range(3):
            optimizer.zero_grad()
            loss_of(model).backward()
            clip(model[0].parameters(), 1.0)
            if not wrong:
                clip(model[3].parameters(), 1.0)
            optimizer.step()

    assert slips_of(program) == ["clipped-partly"] * wrong


@pytest.mark.filterwarnings("ignore:.*empty generator")
def test_clipping_with_a_generator_that_is_used_up() -> None:
    def program() -> None:
        model = net()
        optimizer = sgd(model)
        for _ in range(3):
            optimizer.zero_grad()
            loss_of(model).backward()
            parameters = model.parameters()
            list(parameters)
            clip(parameters, 1.0)
            optimizer.step()

    assert slips_of(program) == ["clipped-nothing"]


@pytest.mark.parametrize("wrong", [False, True])
def test_a_window_that_is_carried_over(wrong: bool) -> None:
    def program() -> None:
        model = net()
        optimizer = sgd(model)
        for _ in range(3):
            if not wrong:
                optimizer.zero_grad()
            for index in range(5):
                loss = nn.functional.mse_loss(model(torch.randn(8, 4)), torch.randn(8, 2))
                (loss / 3).backward()
                if index % 3 == 2:
                    optimizer.step()
                    optimizer.zero_grad()

    assert slips_of(program) == ["window-grew"] * wrong


def test_a_last_window_that_is_shorter() -> None:
    def program() -> None:
        model = net()
        optimizer = sgd(model)
        for _ in range(3):
            for index in range(5):
                (loss_of(model) / 3).backward()
                if index in (2, 4):
                    optimizer.step()
                    optimizer.zero_grad()

    assert slips_of(program) == []


@pytest.mark.parametrize("wrong", [False, True])
def test_gradients_that_are_cleared_after_each_micro_batch(wrong: bool) -> None:
    def program() -> None:
        model = net()
        optimizer = sgd(model)
        for index in range(9):
            if wrong or index % 3 == 0:
                optimizer.zero_grad()
            (loss_of(model) / 3).backward()
            if index % 3 == 2:
                optimizer.step()

    assert slips_of(program) == ["gradients-dropped"] * wrong


def test_a_closure_clears_the_gradients_of_its_own_search() -> None:
    def program() -> None:
        model = net()
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)

        def closure() -> float:
            optimizer.zero_grad()
            loss = loss_of(model)
            loss.backward()
            return float(loss.detach())

        for _ in range(3):
            optimizer.step(closure)

    assert slips_of(program) == []


@pytest.mark.parametrize("wrong", [False, True])
def test_a_part_that_runs_without_gradients(wrong: bool) -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tower, self.head = nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            with torch.set_grad_enabled(not wrong):
                seen = self.tower(rows)
            found: torch.Tensor = self.head(seen)
            return found

    def program() -> None:
        model = Two()
        steps(model, sgd(model), 3)

    assert slips_of(program) == ["never-reached", "part-without-gradient"] * wrong


@pytest.mark.parametrize("wrong", [False, True])
def test_a_group_that_is_left_out(wrong: bool) -> None:
    def program() -> None:
        model = net()
        parts = model[:1] if wrong else model
        steps(model, torch.optim.SGD(parts.parameters(), lr=0.1), 3)

    assert slips_of(program) == ["held-by-nobody"] * wrong


def test_a_gan_is_no_slip() -> None:
    def program() -> None:
        first, second = net(), nn.Linear(2, 1)
        one, two = sgd(first), sgd(second)
        for _ in range(4):
            fake = first(torch.randn(8, 4))
            two.zero_grad()
            second(fake.detach()).mean().backward()
            two.step()
            one.zero_grad()
            (-second(fake).mean()).backward()
            one.step()

    assert slips_of(program) == []


@pytest.mark.parametrize("wrong", [False, True])
def test_gradients_that_are_cleared_between_the_backward_and_the_step(wrong: bool) -> None:
    def program() -> None:
        model = net()
        optimizer = sgd(model)
        for _ in range(3):
            loss = loss_of(model)
            if not wrong:
                optimizer.zero_grad()
            loss.backward()
            if wrong:
                optimizer.zero_grad()
            optimizer.step()

    assert ("stepped-without" in slips_of(program)) == wrong
    assert wrong or slips_of(program) == []


@pytest.mark.parametrize("wrong", [False, True])
def test_groups_that_are_the_wrong_way_round(wrong: bool) -> None:
    def program() -> None:
        model = net()
        vectors = [each for each in model.parameters() if each.dim() < 2]
        matrices = [each for each in model.parameters() if each.dim() > 1]
        decays = {"params": vectors if wrong else matrices, "weight_decay": 0.1}
        others = {"params": matrices if wrong else vectors, "weight_decay": 0.0}
        steps(model, torch.optim.AdamW([decays, others]), 2)

    assert slips_of(program) == ["decay-inverted"] * wrong


def test_clipping_of_gradients_that_no_optimizer_holds_finds_some() -> None:
    def program() -> None:
        model, other = net(), net(5)
        optimizer = sgd(model)
        for _ in range(3):
            optimizer.zero_grad()
            (loss_of(model) + loss_of(other.eval())).backward()
            clip(other.parameters(), 1.0)
            optimizer.step()

    assert "clipped-nothing" not in slips_of(program)


@pytest.mark.parametrize("wrong", [False, True])
def test_a_step_without_new_gradients(wrong: bool) -> None:
    def program() -> None:
        model = net()
        optimizer = sgd(model)
        for _ in range(3):
            loss_of(model).backward()
            optimizer.step()
            if not wrong:  # the gradients of another method
                for each in model.parameters():
                    each.grad = torch.randn_like(each)
            optimizer.step()
            optimizer.zero_grad()

    assert slips_of(program) == ["stepped-again"] * wrong


def test_a_new_gradient_with_the_id_of_the_one_before_is_another() -> None:
    """A tensor that is freed leaves its id to the next one."""

    def program() -> None:
        weight = nn.Parameter(torch.ones(3))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        ids = set()
        for _ in range(20):
            (weight * torch.rand(3)).sum().backward()
            ids.add(id(weight.grad))
            optimizer.step()
            optimizer.zero_grad()
        assert len(ids) < 20

    assert slips_of(program) == []
