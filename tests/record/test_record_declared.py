"""Outputs are recorded in the annotated order of dimensions, and not if annotated as local."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from pytest_trainsafe.record.context import Context

SP = {"tp": 2, "sp": True}


class Embed(nn.Module):
    """[batch, sequence, width] in; [sequence, batch, width] and its row sums out."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = (x * self.weight).transpose(0, 1).contiguous()
        return y, y.sum(-1)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = Embed()

    def forward(self, x: Tensor) -> Tensor:
        y, sums = self.embed(x)
        return (y * torch.arange(24.0).view(3, 2, 4)).sum() + sums.sum()


def training(entry: dict[str, Any]) -> Any:
    def train(ctx: Context) -> None:
        model = Model()
        ctx.watch(model, annotations={"modules": {"embed": entry}})
        with ctx.step(), ctx.microbatch(0):
            model(torch.arange(24.0).view(2, 3, 4)).backward()

    return train


def test_permuted_outputs_and_their_gradients_are_recorded_in_the_logical_order(
    record: Any,
) -> None:
    entry = {"output.0": {"sp_dim": 1, "permuted": {"sp": [1, 0, 2]}}}
    run = record(training(entry), point=SP)
    plain = record(training(entry), point={"tp": 2})

    for kind in ("activation", "activation_grad"):
        value = run.get(kind, "embed.output.0")
        assert value.shape == (2, 3, 4)
        assert torch.equal(value, plain.get(kind, "embed.output.0").permute(1, 0, 2))
        assert torch.equal(run.get(kind, "embed.output.1"), plain.get(kind, "embed.output.1"))


def test_one_tensor_of_an_output_may_be_annotated_as_local(record: Any) -> None:
    run = record(training({"output.0": {"local": ["sp"]}}), point=SP)

    assert [p for p in run.paths("activation") if "embed" in p] == ["embed.output.1"]
    assert [p for p in run.paths("activation_grad") if "embed" in p] == ["embed.output.1"]
    assert run.rank.note("local") == ["place embed.output.0"]
    elsewhere = record(training({"output.0": {"local": ["sp"]}}), point={"tp": 2})
    assert "embed.output.0" in elsewhere.paths("activation")
    assert elsewhere.rank.note("local") == []


def test_the_gradient_of_an_output_alone_may_be_annotated_as_local(record: Any) -> None:
    run = record(training({"output_grad.0": {"local": ["tp"]}}), point={"tp": 2})

    assert "embed.output.0" in run.paths("activation")
    assert [p for p in run.paths("activation_grad") if "embed" in p] == ["embed.output.1"]
