"""Correct programs that clip, clear, accumulate or write gradients in unusual ways have no slip."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.support.learn.slips import slips_of

Program = Callable[[], None]


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))


def gradient(tensor: Tensor) -> Tensor:
    assert tensor.grad is not None
    return tensor.grad


def batch(rows: int = 24) -> tuple[Tensor, Tensor]:
    x = torch.randn(rows, 6)
    return x, x[:, :3].argmax(1)


def losses(model: nn.Module, count: int, rows: int = 24) -> Iterator[Tensor]:
    for _ in range(count):
        x, y = batch(rows)
        yield F.cross_entropy(model(x), y)


def trains(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 6) -> None:
    for loss in losses(model, steps):
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def sgd(model: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=0.05)


def projected_gradients_of_three_tasks() -> None:
    model = net()
    optimizer = sgd(model)
    for _ in range(6):
        x = torch.randn(24, 6)
        scores, found = model(x), []
        for task in range(3):
            optimizer.zero_grad()
            F.mse_loss(scores[:, task], x[:, task] * x[:, 3]).backward(retain_graph=True)
            found.append([gradient(p).clone() for p in model.parameters()])
        for p, *grads in zip(model.parameters(), *found, strict=True):
            p.grad = torch.stack(grads).mean(0)
        optimizer.step()


def an_attack_that_clears_the_model() -> None:
    model = net()
    optimizer = sgd(model)
    for _ in range(6):
        x, y = batch()
        delta = torch.zeros_like(x, requires_grad=True)
        for _ in range(3):
            F.cross_entropy(model(x + delta), y).backward()
            delta.data += 0.05 * gradient(delta).sign()
            gradient(delta).zero_()
            model.zero_grad()
        F.cross_entropy(model(x + delta.detach()), y).backward()
        optimizer.step()
        optimizer.zero_grad()


def attacks_in_an_evaluation() -> None:
    model = net()
    optimizer = sgd(model)
    for _ in range(2):
        trains(model, optimizer, 3)
        model.eval()
        for _ in range(3):
            x, y = batch()
            x.requires_grad_()
            model.zero_grad()
            F.cross_entropy(model(x), y).backward()
        model.train()


def fisher_information_between_two_tasks() -> None:
    model = net()
    optimizer = sgd(model)
    trains(model, optimizer)
    for loss in losses(model, 8, rows=1):
        model.zero_grad()
        loss.backward()
    trains(model, optimizer)


def private_gradients_of_single_examples() -> None:
    model = net()
    optimizer = sgd(model)
    for _ in range(4):
        sums = [torch.zeros_like(p) for p in model.parameters()]
        for loss in losses(model, 4, rows=1):
            model.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for total, p in zip(sums, model.parameters(), strict=True):
                total += gradient(p)
        for total, p in zip(sums, model.parameters(), strict=True):
            p.grad = (total + 0.1 * torch.randn_like(total)) / 4
        optimizer.step()


def noise_after_the_clipping() -> None:
    model = net()
    optimizer = sgd(model)
    for loss in losses(model, 6):
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for p in model.parameters():
            gradient(p).add_(torch.randn_like(p), alpha=0.01)
        optimizer.step()


def clipping_in_the_warm_up_only() -> None:
    model = net()
    optimizer = sgd(model)
    for step, loss in enumerate(losses(model, 6)):
        optimizer.zero_grad()
        loss.backward()
        if step < 3:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def rows_that_are_masked_after_the_clipping() -> None:
    words = nn.Embedding(12, 8)
    model = nn.Sequential(words, nn.Linear(8, 4))
    optimizer = sgd(model)
    for _ in range(6):
        tokens = torch.randint(12, (16,))
        optimizer.zero_grad()
        F.cross_entropy(model(tokens), tokens % 4).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        gradient(words.weight)[:8] = 0
        optimizer.step()


def windows_that_grow() -> None:
    model = net()
    optimizer = sgd(model)
    for window in (2, 2, 2, 3, 3, 4, 4, 8, 8):
        for loss in losses(model, window):
            (loss / window).backward()
        optimizer.step()
        optimizer.zero_grad()


def windows_of_a_number_of_labels() -> None:
    model = net()
    optimizer = sgd(model)
    rows = random.Random(0)
    for window in (2, 3, 6, 2, 5, 7, 3, 2):
        for _ in range(window):
            x, y = batch(rows.randint(2, 9))
            (F.cross_entropy(model(x), y, reduction="sum") / 30).backward()
        optimizer.step()
        optimizer.zero_grad()


def two_domains_in_a_step() -> None:
    model = net()
    optimizer = sgd(model)
    for _ in range(6):
        optimizer.zero_grad()
        for loss in losses(model, 2):
            loss.backward()
        optimizer.step()


def a_critic_with_noisy_labels() -> None:
    maker = nn.Linear(4, 6)
    critic = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizers = sgd(critic), sgd(maker)
    criterion = nn.BCEWithLogitsLoss()
    for _ in range(6):
        made = maker(torch.randn(16, 4))
        optimizers[0].zero_grad()
        criterion(critic(torch.randn(16, 6)), torch.empty(16, 1).uniform_(0.8, 1.0)).backward()
        criterion(critic(made.detach()), torch.empty(16, 1).uniform_(0.0, 0.2)).backward()
        optimizers[0].step()
        optimizers[1].zero_grad()
        criterion(critic(made), torch.ones(16, 1)).backward()
        optimizers[1].step()


def first_order_meta_learning() -> None:
    meta = net()
    optimizer = sgd(meta)
    for _ in range(4):
        sums = [torch.zeros_like(p) for p in meta.parameters()]
        for _ in range(2):
            learner = copy.deepcopy(meta)
            for loss in losses(learner, 3):
                learner.zero_grad()
                loss.backward()
                with torch.no_grad():
                    for p in learner.parameters():
                        p.sub_(gradient(p), alpha=0.1)
            for total, p in zip(sums, learner.parameters(), strict=True):
                total += gradient(p) / 2
        for p, total in zip(meta.parameters(), sums, strict=True):
            p.grad = total
        optimizer.step()


def a_scaler_for_each_of_two_phases() -> None:
    model = net()
    optimizer = sgd(model)
    for _ in range(2):
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for loss in losses(model, 4):
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()


def an_average_beside_steps_that_are_skipped() -> None:
    model = net()
    optimizer = sgd(model)
    average = torch.optim.swa_utils.AveragedModel(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, backoff_factor=2.0**-40)
    for loss in losses(model, 6):
        optimizer.zero_grad()
        scaler.scale(loss * 1e3).backward()
        scaler.step(optimizer)
        scaler.update()
        average.update_parameters(model)


@pytest.mark.parametrize(
    "program",
    [
        projected_gradients_of_three_tasks,
        an_attack_that_clears_the_model,
        attacks_in_an_evaluation,
        fisher_information_between_two_tasks,
        private_gradients_of_single_examples,
        noise_after_the_clipping,
        clipping_in_the_warm_up_only,
        rows_that_are_masked_after_the_clipping,
        windows_that_grow,
        windows_of_a_number_of_labels,
        two_domains_in_a_step,
        a_critic_with_noisy_labels,
        first_order_meta_learning,
        a_scaler_for_each_of_two_phases,
        an_average_beside_steps_that_are_skipped,
    ],
)
def test_a_correct_use_of_gradients_is_no_slip(program: Program) -> None:
    assert slips_of(program) == []
