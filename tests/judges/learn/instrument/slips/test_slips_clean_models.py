"""Correct programs that freeze, reuse, copy or reset parts of models have no slip."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.support.learn.slips import slips_of

Program = Callable[[], None]


def net(*, norm: bool = False) -> nn.Sequential:
    norms = [nn.BatchNorm1d(16)] if norm else []
    return nn.Sequential(nn.Linear(6, 16), *norms, nn.ReLU(), nn.Linear(16, 3))


def trains(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 6) -> None:
    for _ in range(steps):
        x = torch.randn(24, 6)
        optimizer.zero_grad()
        F.cross_entropy(model(x), x[:, :3].argmax(1)).backward()
        optimizer.step()


def adam(model: nn.Module) -> torch.optim.Adam:
    return torch.optim.Adam(model.parameters(), lr=1e-2)


def a_generator_that_draws_in_training_mode() -> None:
    maker = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 6))
    critic = nn.Sequential(nn.Linear(6, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
    optimizers, fixed = (adam(critic), adam(maker)), torch.randn(8, 4)
    criterion = nn.BCEWithLogitsLoss()
    for step in range(8):
        made = maker(torch.randn(16, 4))
        critic.zero_grad()
        criterion(critic(torch.randn(16, 6)), torch.ones(16, 1)).backward()
        criterion(critic(made.detach()), torch.zeros(16, 1)).backward()
        optimizers[0].step()
        maker.zero_grad()
        criterion(critic(made), torch.ones(16, 1)).backward()
        optimizers[1].step()
        if step % 4 == 3:
            with torch.no_grad():
                maker(fixed)


def a_model_that_gets_deeper() -> None:
    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.begin, self.end, self.depth = nn.Linear(6, 16), nn.Linear(16, 3), 1
            self.blocks = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))

        def forward(self, x: Tensor) -> Tensor:
            h = self.begin(x)
            for block in self.blocks[: self.depth]:
                h = h + F.relu(block(h))
            return self.end(h)

    model = Deep()
    optimizer = adam(model)
    for depth in (1, 2, 3, 4):
        model.depth = depth
        trains(model, optimizer, 3)


def an_encoder_without_gradients_in_the_first_steps() -> None:
    class Tuned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.head, self.count = net(), nn.Linear(3, 3), 0

        def forward(self, x: Tensor) -> Tensor:
            self.count += 1
            with torch.set_grad_enabled(self.count > 6):
                h = self.encoder(x)
            return self.head(h)

    model = Tuned()
    trains(model, adam(model), 12)


def a_term_without_weight_in_the_first_steps() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.trunk, self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 3), nn.Linear(8, 2)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            h = self.trunk(x).tanh()
            return self.first(h), self.second(h)

    model = Two()
    optimizer = adam(model)
    for step in range(14):
        x = torch.randn(24, 6)
        one, other = model(x)
        loss = F.cross_entropy(one, x[:, :3].argmax(1))
        loss = loss + (0.5 if step > 9 else 0.0) * F.cross_entropy(other, (x[:, 5] > 0).long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def an_architecture_whose_optimizer_waits() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ops = nn.ModuleList(nn.Linear(6, 3) for _ in range(3))
            self.alpha = nn.Parameter(1e-3 * torch.randn(3))

        def forward(self, x: Tensor) -> Tensor:
            shares = self.alpha.softmax(0)
            return sum(share * op(x) for share, op in zip(shares, self.ops, strict=True))

    model = Mixed()
    weights = torch.optim.SGD(model.ops.parameters(), lr=0.1)
    shares = torch.optim.Adam([model.alpha], lr=3e-3)
    trains(model, weights, 13)
    for _ in range(3):
        trains(model, shares, 1)
        trains(model, weights, 1)


def codes_and_prototypes_that_are_moved_by_hand() -> None:
    class Coded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.features, self.codes = nn.Linear(6, 4), nn.Embedding(8, 4)
            self.codes.weight.requires_grad_(False)
            self.centres = nn.Parameter(torch.randn(3, 4), requires_grad=False)

        def forward(self, x: Tensor) -> Tensor:
            z = self.features(x)
            at = torch.cdist(z, self.codes.weight).argmin(1)
            with torch.no_grad():
                for code in at.unique():
                    self.codes.weight[code].mul_(0.7).add_(0.3 * z[at == code].mean(0))
                self.centres.mul_(0.9).add_(0.1 * z.mean(0))
            return z @ self.centres.T

    model = Coded()
    trains(model, torch.optim.Adam(model.features.parameters(), lr=1e-2), 8)


def points_as_an_attribute() -> None:
    class Solver(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))
            self.t = torch.linspace(0, 1, 20).view(-1, 1).requires_grad_()

        def forward(self, t: Tensor) -> Tensor:
            return self.net(t)

    model = Solver()
    optimizer = adam(model)
    for _ in range(6):
        y = model(model.t)
        (slope,) = torch.autograd.grad(y.sum(), model.t, create_graph=True)
        optimizer.zero_grad()
        ((slope + y) ** 2).mean().backward()
        optimizer.step()


def a_part_of_another_model_and_optimizer() -> None:
    encoder = nn.Linear(6, 8)

    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.out = [encoder], nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.encoder[0](x))

    model = Reader()
    optimizers = adam(model), adam(encoder)
    for _ in range(6):
        x = torch.randn(24, 6)
        for each in optimizers:
            each.zero_grad()
        F.cross_entropy(model(x), x[:, :3].argmax(1)).backward()
        for each in optimizers:
            each.step()


def norms_that_rest_in_attacks_and_in_the_first_epochs() -> None:
    model = net(norm=True)
    optimizer = adam(model)
    for epoch in range(4):
        model.train()
        for module in model.modules():
            if isinstance(module, nn.BatchNorm1d) and epoch < 2:
                module.eval()
        trains(model, optimizer, 3)


def folds_that_reset_the_model() -> None:
    model = net(norm=True)
    for _ in range(3):
        for module in model:
            if isinstance(module, nn.Linear | nn.BatchNorm1d):
                module.reset_parameters()
        trains(model, adam(model))


def last(model: nn.Sequential) -> nn.Linear:
    layer = model[-1]
    assert isinstance(layer, nn.Linear)
    return layer


def a_last_layer_that_is_reset() -> None:
    model = net()
    optimizer = adam(model)
    trains(model, optimizer)
    last(model).reset_parameters()
    trains(model, optimizer)


def _loaded() -> nn.Sequential:
    source, model = net(), net()
    trains(source, adam(source), 3)
    model.load_state_dict(copy.deepcopy(source.state_dict()))
    return model


def a_last_layer_that_is_new_after_the_load() -> None:
    model = _loaded()
    nn.init.xavier_uniform_(last(model).weight)
    trains(model, adam(model))


def weights_that_are_pruned_after_the_load() -> None:
    model = _loaded()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(p.abs() > p.abs().median())
    trains(model, adam(model))


def weights_that_are_averaged_after_the_load() -> None:
    model, other = _loaded(), _loaded()
    with torch.no_grad():
        for p, q in zip(model.parameters(), other.parameters(), strict=True):
            p.mul_(0.5).add_(q, alpha=0.5)
    trains(model, adam(model))


def experts_that_begin_as_copies() -> None:
    dense = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 6))
    before = nn.Sequential(dense, nn.Linear(6, 3))
    trains(before, adam(before), 3)

    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.experts = nn.ModuleList(copy.deepcopy(dense) for _ in range(3))
            self.gate, self.head = nn.Linear(6, 3), nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            shares = self.gate(x).softmax(-1)
            mixed = sum(shares[:, [i]] * each(x) for i, each in enumerate(self.experts))
            return self.head(mixed)

    model = Experts()
    trains(model, adam(model))


def a_sequence_that_is_restored_from_one_vector() -> None:
    class Autoencoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.out = nn.Embedding(10, 8), nn.Linear(16, 10)
            self.reads, self.writes = (
                nn.GRU(8, 16, batch_first=True),
                nn.GRU(16, 16, batch_first=True),
            )

        def forward(self, tokens: Tensor) -> Tensor:
            _, last = self.reads(self.words(tokens))
            return self.out(self.writes(last[0][:, None].expand(-1, tokens.shape[1], -1))[0])

    model = Autoencoder()
    optimizer = adam(model)
    for _ in range(5):
        tokens = torch.randint(10, (16, 7))
        optimizer.zero_grad()
        F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
        optimizer.step()


@pytest.mark.parametrize(
    "program",
    [
        a_generator_that_draws_in_training_mode,
        a_model_that_gets_deeper,
        an_encoder_without_gradients_in_the_first_steps,
        a_term_without_weight_in_the_first_steps,
        an_architecture_whose_optimizer_waits,
        points_as_an_attribute,
        a_part_of_another_model_and_optimizer,
        norms_that_rest_in_attacks_and_in_the_first_epochs,
        folds_that_reset_the_model,
        a_last_layer_that_is_reset,
        a_last_layer_that_is_new_after_the_load,
        weights_that_are_pruned_after_the_load,
        weights_that_are_averaged_after_the_load,
        experts_that_begin_as_copies,
        a_sequence_that_is_restored_from_one_vector,
    ],
)
def test_a_correct_use_of_models_is_no_slip(program: Program) -> None:
    assert slips_of(program) == []


def test_codes_and_prototypes_may_be_moved_by_hand() -> None:
    state = "torch.nn.Parameter.data"

    assert "frozen-moved" not in slips_of(codes_and_prototypes_that_are_moved_by_hand, state)
