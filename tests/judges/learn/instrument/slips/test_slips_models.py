"""Slips in how models run are noticed, and not in the program without them."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.optim.swa_utils import AveragedModel, update_bn
from torch.utils.checkpoint import checkpoint

from tests.support.learn.slips import loss_of, net, sgd, slips_of, steps


class Tower(nn.Module):
    """Two layers, kept in a list of modules or in a plain list."""

    def __init__(self, registered: bool) -> None:
        super().__init__()
        layers = [nn.Linear(4, 4), nn.Linear(4, 4)]
        self.layers = nn.ModuleList(layers) if registered else layers
        self.head = nn.Linear(4, 2)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            rows = torch.relu(layer(rows))
        found: torch.Tensor = self.head(rows)
        return found


@pytest.mark.parametrize("wrong", [False, True])
def test_layers_in_a_plain_list(wrong: bool) -> None:
    def program() -> None:
        model = Tower(registered=not wrong)
        steps(model, sgd(model), 2)

    assert slips_of(program) == ["unregistered"] * wrong


@pytest.mark.parametrize("part", ["dropout", "norm"])
@pytest.mark.parametrize("wrong", [False, True])
def test_a_validation_in_training_mode(wrong: bool, part: str) -> None:
    def program() -> None:
        model = net(dropout=0.3 * (part == "dropout"), norm=part == "norm")
        optimizer = sgd(model)
        for _ in range(3):
            model.train()
            steps(model, optimizer, 3)
            model.train(wrong)
            with torch.no_grad():
                loss_of(model)

    assert slips_of(program) == ["evaluated-in-training"] * wrong


def test_dropout_that_is_kept_active_on_purpose() -> None:
    def program() -> None:
        model = net(dropout=0.3)
        steps(model, sgd(model), 3)
        model.eval()
        model[2].train()
        with torch.no_grad():
            loss_of(model)

    assert slips_of(program) == []


@pytest.mark.parametrize("attention", [False, True])
@pytest.mark.parametrize("wrong", [False, True])
def test_functional_dropout_in_evaluation(wrong: bool, attention: bool) -> None:
    class Dropping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            hidden = self.layer(rows)
            active = self.training or wrong
            if attention:
                once = hidden.unsqueeze(0)
                share = 0.3 if active else 0.0
                return nn.functional.scaled_dot_product_attention(once, once, once, None, share)
            return nn.functional.dropout(hidden, 0.3, training=active)

    def program() -> None:
        model = Dropping()
        steps(model, sgd(model), 3)
        model.eval()
        with torch.no_grad():
            loss_of(model)

    assert slips_of(program) == ["dropout-in-evaluation"] * wrong


@pytest.mark.parametrize("wrong", [False, True])
def test_norms_of_a_frozen_part(wrong: bool) -> None:
    def program() -> None:
        model = net(norm=True)
        model[:2].requires_grad_(False)
        if not wrong:
            model[1].eval()
        steps(model, torch.optim.SGD(model[3:].parameters(), lr=0.1), 2)

    assert slips_of(program) == ["frozen-norm-learns"] * wrong


@pytest.mark.parametrize("wrong", [False, True])
def test_norms_that_train_puts_back(wrong: bool) -> None:
    def program() -> None:
        model = net(norm=True)
        model[1].eval()
        model.train()
        if not wrong:
            model[1].eval()
        steps(model, sgd(model), 2)

    assert slips_of(program) == ["norm-thawed"] * wrong


@pytest.mark.parametrize("wrong", [False, True])
def test_a_validation_that_keeps_its_graph(wrong: bool) -> None:
    def program() -> None:
        model = net()
        optimizer = sgd(model)
        for _ in range(3):
            model.train()
            steps(model, optimizer, 2)
            model.eval()
            with torch.set_grad_enabled(wrong):
                loss_of(model)

    assert slips_of(program) == ["evaluated-with-graph"] * wrong


def test_a_gradient_of_the_data_uses_the_graph_of_an_evaluated_model() -> None:
    def program() -> None:
        model = net()
        optimizer = sgd(model)
        for _ in range(3):
            model.eval()
            loss = loss_of(model)
            torch.autograd.grad(loss, [*model.parameters()])
            model.train()
            steps(model, optimizer, 2)

    assert slips_of(program) == []


@pytest.mark.parametrize("wrong", [False, True])
def test_requires_grad_of_a_module(wrong: bool) -> None:
    def program() -> None:
        model = net()
        if wrong:
            model[0].requires_grad = False  # type: ignore[assignment]
        else:
            model[0].requires_grad_(False)
        steps(model, sgd(model), 2)

    assert slips_of(program) == ["flag-on-module"] * wrong


@pytest.mark.parametrize("wrong", [False, True])
def test_an_adapter_that_is_frozen_at_zero(wrong: bool) -> None:
    def program() -> None:
        model = Tower(registered=True)
        nn.init.zeros_(model.layers[1].weight)  # type: ignore[arg-type]
        for layer in model.layers:
            layer.requires_grad_(False)
        if not wrong:
            model.layers[1].requires_grad_(True)
        steps(model, torch.optim.SGD((p for p in model.parameters() if p.requires_grad), lr=0.1), 3)

    assert slips_of(program) == ["frozen-at-zero"] * wrong


@pytest.mark.parametrize("resized", [False, True])
@pytest.mark.parametrize("tied", [False, True])
def test_an_embedding_and_a_head_with_equal_weights(tied: bool, resized: bool) -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.make(6, tied or resized)

        def make(self, words: int, tied: bool) -> None:
            self.embed, self.head = nn.Embedding(words, 4), nn.Linear(4, words, bias=False)
            if tied:
                self.head.weight = self.embed.weight
            else:
                self.head.weight.data.copy_(self.embed.weight)

        def forward(self, words: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.head(self.embed(words))
            return found

    def program() -> None:
        model = Words()
        for words in (6, 8) if resized else (6,):
            if words > 6:
                model.make(words, tied)
            optimizer = sgd(model)
            model(torch.arange(6)).square().mean().backward()
            optimizer.step()

    broken = resized and not tied
    assert slips_of(program) == ["equal-but-untied"] * (not tied) + ["ties-broken"] * broken


@pytest.mark.parametrize("kept", [False, True])
def test_a_recomputation_with_other_random_numbers(kept: bool) -> None:
    def program() -> None:
        model = net(dropout=0.5)
        optimizer = sgd(model)
        for _ in range(2):
            rows = torch.randn(8, 4)
            out = checkpoint(model, rows, use_reentrant=False, preserve_rng_state=kept)
            assert isinstance(out, torch.Tensor)
            out.square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    assert slips_of(program) == ["recomputed-otherwise"] * (not kept)


def test_a_frozen_embedding_of_positions_may_be_zero() -> None:
    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.positions = nn.Parameter(torch.zeros(1, 4), requires_grad=False)
            self.head = nn.Linear(4, 2)

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.head(rows + self.positions)
            return found

    def program() -> None:
        model = Positions()
        steps(model, torch.optim.SGD(model.head.parameters(), lr=0.1), 3)

    assert slips_of(program) == []


# Averages.


@pytest.mark.parametrize("wrong", [False, True])
def test_an_average_that_is_never_updated(wrong: bool) -> None:
    def program() -> None:
        model = net()
        average = copy.deepcopy(model).eval().requires_grad_(False)
        optimizer = sgd(model)
        for _ in range(3):
            for _ in range(3):
                steps(model, optimizer)
                for slow, fast in zip(average.parameters(), model.parameters(), strict=True):
                    if not wrong:
                        slow.data.lerp_(fast.data, 0.1)
            loss_of(average)

    assert slips_of(program) == ["average-never-updated"] * wrong


def test_a_frozen_reference_that_runs_in_each_step() -> None:
    def program() -> None:
        model = net()
        reference = copy.deepcopy(model).eval().requires_grad_(False)
        optimizer = sgd(model)
        for _ in range(5):
            rows = torch.randn(8, 4)
            optimizer.zero_grad()
            with torch.no_grad():
                wanted = reference(rows)
            (model(rows) - wanted).square().mean().backward()
            optimizer.step()

    assert slips_of(program) == []


@pytest.mark.parametrize("how", ["norms in training", "momentum of none", "not at all"])
def test_an_average_whose_statistics_are_taken_anew_before_each_evaluation(how: str) -> None:
    def renew(average: nn.Module) -> None:
        average.eval()
        for norm in average.modules():
            if isinstance(norm, nn.BatchNorm1d):
                norm.reset_running_stats()
                norm.momentum = None if how == "momentum of none" else norm.momentum
                norm.train()
        with torch.no_grad():
            average(torch.randn(8, 4))
        average.eval()

    def program() -> None:
        model = net(norm=True)
        average = copy.deepcopy(model).requires_grad_(False)
        optimizer = sgd(model)
        for _ in range(3):
            steps(model, optimizer, 3)
            for slow, fast in zip(average.parameters(), model.parameters(), strict=True):
                slow.data.lerp_(fast.data, 0.2)
            if how != "not at all":
                renew(average)
            average.eval()
            with torch.no_grad():
                loss_of(average)

    assert slips_of(program) == ["average-lacks-buffers"] * (how == "not at all")


@pytest.mark.parametrize("wrong", [False, True])
def test_an_average_without_the_statistics_of_norms(wrong: bool) -> None:
    def program() -> None:
        model = net(norm=True)
        average = copy.deepcopy(model).eval().requires_grad_(False)
        optimizer = sgd(model)
        for _ in range(4):
            steps(model, optimizer)
            for slow, fast in zip(average.parameters(), model.parameters(), strict=True):
                slow.data.lerp_(fast.data, 0.1)
        if not wrong:
            update_bn([torch.randn(8, 4) for _ in range(3)], average)
        average.eval()
        with torch.no_grad():
            loss_of(average)

    assert slips_of(program) == ["average-lacks-buffers"] * wrong


@pytest.mark.parametrize("wrong", [False, True])
def test_an_average_that_is_updated_before_the_step(wrong: bool) -> None:
    def program() -> None:
        model = net()
        average = AveragedModel(model)
        optimizer = sgd(model)
        for _ in range(3):
            optimizer.zero_grad()
            loss_of(model).backward()
            if wrong:
                average.update_parameters(model)
            optimizer.step()
            if not wrong:
                average.update_parameters(model)

    assert slips_of(program) == ["averaged-before-step"] * wrong


class _Low(nn.Module):
    """Adds a product of low rank to a weight."""

    def __init__(self, own: bool) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.randn(4, 1), requires_grad=own)

    def forward(self, weight: Tensor) -> Tensor:
        return weight + self.a @ self.a.t()


class _Adapted(nn.Module):
    """A layer with an adapter beside it, named as peft names it."""

    def __init__(self) -> None:
        super().__init__()
        self.base_layer = nn.Linear(4, 4)
        self.lora_b = nn.Linear(4, 4, bias=False)

    def forward(self, rows: Tensor) -> Tensor:
        found: Tensor = self.base_layer(rows) + self.lora_b(rows)
        return found


@pytest.mark.parametrize("form", ["parametrized", "beside"])
@pytest.mark.parametrize(
    ("frozen", "trained", "slips"),
    [
        ("others", "adapter", ["adapted-and-trained"]),
        ("others and the base", "adapter", []),
        ("nothing", "adapter", []),  # all of the model is trained
        ("others", "no adapter", []),  # as under a parametrization without parameters
    ],
)
def test_the_weight_that_an_adapter_adds_to(
    form: str, frozen: str, trained: str, slips: list[str]
) -> None:
    def program() -> None:
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2))
        own = trained == "adapter"
        if form == "parametrized":
            parametrize.register_parametrization(model[1], "weight", _Low(own))
        else:
            model[1] = _Adapted()
            model[1].lora_b.requires_grad_(own)
        if frozen != "nothing":
            model[0].requires_grad_(False)
        if frozen == "others and the base":
            model[1].requires_grad_(False)
            for name, parameter in model[1].named_parameters():
                parameter.requires_grad_(own and name.endswith((".a", "lora_b.weight")))
        steps(model, sgd(model), 3)

    assert slips_of(program) == slips
