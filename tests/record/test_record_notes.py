"""A trace's notes about autocast, dropout and annotations; selection of what is recorded."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from pytest_trainsafe.core.layout import Partial, Shard
from pytest_trainsafe.record.context import Context

X = torch.linspace(-1, 1, 12).reshape(4, 3)


def train_model(model: nn.Module, optimizer: Any = None, **annotations: Any) -> Any:
    def train(ctx: Context) -> None:
        ctx.watch(model, optimizer, annotations=annotations or None)
        for _ in range(2):
            with ctx.step():
                with ctx.microbatch(0):
                    loss = model(X).square().sum()
                    ctx.loss(loss)
                    loss.backward()
                ctx.grad_norm(1.5)

    return train


def test_what_a_program_uses_of_its_context_is_noted(record: Any) -> None:
    def train(ctx: Context) -> None:
        model = nn.Linear(3, 2).to(ctx.dtype)
        ctx.initialize(model)
        ctx.watch(model)
        ctx.group("tp")
        with ctx.step():
            for index in ctx.microbatches(1):
                with ctx.microbatch(index):
                    model(X.to(ctx.dtype)).sum().backward()

    used = record(train).rank.note("used")
    bare = record(train_model(nn.Linear(3, 2))).rank.note("used")

    assert used == ["dtype", "group tp", "initialize", "microbatches"]
    assert bare == []


def test_autocast_is_recorded_once_with_its_dtype(record: Any) -> None:
    model = nn.Linear(3, 2)

    def train(ctx: Context) -> None:
        ctx.watch(model)
        for _ in range(2):
            with ctx.step(), ctx.microbatch(0):
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    y = model(X)
                y.sum().backward()

    run = record(train)
    assert run.rank.note("autocast") == ["bfloat16"]
    assert run.get("activation", "output").dtype == torch.bfloat16
    assert record(train_model(nn.Linear(3, 2))).rank.note("autocast") == []


def test_autocast_inside_the_model_is_recorded(record: Any) -> None:
    class Inside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(3, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", dtype=torch.float16):
                return self.fc(x).float()

    run = record(train_model(Inside()), modules=("",))
    assert run.rank.note("autocast") == ["float16"]


@pytest.mark.parametrize(
    ("layer", "rates", "draws"),
    [
        (nn.Dropout(0.25), ["0.25"], True),
        (nn.Dropout1d(0.5), ["0.5"], True),
        (nn.Dropout(0.25).eval(), [], False),
        (nn.Dropout(0.0), [], True),  # the kernel draws random numbers even so
        (nn.Identity(), [], False),
    ],
)
def test_dropout_rates_and_changes_of_the_generator_state_are_recorded(
    record: Any, layer: nn.Module, rates: list[str], draws: bool
) -> None:
    run = record(train_model(nn.Sequential(nn.Linear(3, 3), layer)))
    assert run.rank.note("dropout") == rates
    if layer.training and getattr(layer, "p", 1) == 0.0:
        return
    assert [s.rng_before != s.rng_after for s in run.rank.steps] == [draws, draws]


def test_dropout_of_attention_is_recorded(record: Any) -> None:
    class Attends(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(4, 2, dropout=0.125)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = torch.cat([x, x[:, :1]], 1)
            out, _ = self.attention(x, x, x)
            return out

    run = record(train_model(Attends()))
    assert run.rank.note("dropout") == ["0.125"]
    assert all(s.rng_before != s.rng_after for s in run.rank.steps)


def test_only_the_selected_kinds_are_recorded(record: Any) -> None:
    every = record(train_model(nn.Linear(3, 2)))
    assert {id.kind for id in every.rank.tensors} == {
        "input", "activation", "activation_grad", "param_grad", "main_grad", "param", "loss",
        "grad_norm",
    }  # fmt: skip
    for kind in sorted({id.kind for id in every.rank.tensors} - {"param"}):
        run = record(train_model(nn.Linear(3, 2)), kinds=(kind,))
        assert {id.kind for id in run.rank.tensors} == {kind}
        assert list(run.rank.tensors) == [id for id in every.rank.tensors if id.kind == kind]


def test_activations_are_recorded_only_for_selected_modules(record: Any) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.Tanh(), nn.Linear(3, 3)))
    run = record(train_model(model), modules=("1.*", "0"))
    assert run.paths("activation", 0) == ["0.output", "1.0.output", "1.1.output"]
    assert len(run.paths("param_grad", 0)) == 4
    assert set(run.rank.modules) == {"", "0", "1", "1.0", "1.1"}


def test_selection_does_not_change_call_numbers_or_values(record: Any) -> None:
    def model() -> nn.Module:
        torch.manual_seed(1)
        layer = nn.Linear(3, 3)
        return nn.Sequential(layer, nn.Tanh(), layer)

    every = record(train_model(model())).hashes()
    some = record(train_model(model()), modules=("0",), kinds=("activation",)).hashes()
    assert some == {id: every[id] for id in every if id.kind == "activation" and id.module == "0"}
    assert {id.call for id in some} == {0, 1}


def test_events_name_the_annotation_of_their_layout_and_unmatched_ones_are_listed(
    record: Any,
) -> None:
    model = nn.Sequential(nn.Linear(3, 3))
    run = record(
        train_model(model, modules={"0": {"output": {"tp_dim": -1}}, "nothing": {}},
                    parameters={"0.weight": {"tp_dim": 0}, "other": {}})
    )  # fmt: skip
    assert run.rank.note("unmatched_annotation") == ["parameters: other", "modules: nothing"]
    sources = {str(id.kind): e.layout_source for id, e in run.rank.tensors.items() if id.module}
    assert sources["activation"] == "modules: 0"
    assert sources["activation_grad"] == "modules: 0"


def test_gradients_of_outputs_have_their_own_annotations(record: Any) -> None:
    """The gradient of a partial output is replicated, unless `output_grad` says otherwise."""
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    modules = {
        "0": {"output": {"tp_partial": True}},
        "1": {"output": {"tp_dim": 1}, "output_grad": {"tp_partial": True}},
    }
    run = record(train_model(model, modules=modules), point={"tp": 2})
    layouts = {(id.kind, id.module): event.layout for id, event in run.rank.tensors.items()}
    assert layouts["activation", "0"] == (Partial("tp"),)
    assert layouts["activation_grad", "0"] == ()
    assert layouts["activation", "1"] == (Shard(1, "tp"),)
    assert layouts["activation_grad", "1"] == (Partial("tp"),)


def test_two_recordings_of_a_program_have_the_same_bits(record: Any) -> None:
    def train(ctx: Context) -> None:
        model = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.LayerNorm(8), nn.Linear(8, 2))
        ctx.initialize(model)
        train_model(model, torch.optim.AdamW(model.parameters()))(ctx)

    first, second = record(train), record(train)
    assert list(first.hashes().items()) == list(second.hashes().items())
    assert first.rank.inputs == second.rank.inputs
    assert [s.rng_after for s in first.rank.steps] == [s.rng_after for s in second.rank.steps]
    assert record(train, seed=1).hashes() != first.hashes()
