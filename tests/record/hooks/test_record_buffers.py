"""Buffers are recorded at the start, after every step, and whenever a forward changed them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pytest_trainsafe.annotations.declared import Annotations
from pytest_trainsafe.annotations.entries import AnnotationError
from pytest_trainsafe.core.layout import Shard, ZigZag
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.core.tensor_id import INITIAL
from pytest_trainsafe.record.context import Context

X = torch.linspace(-1, 1, 24).reshape(2, 4, 3)


class Kept(nn.Module):
    table: Tensor
    calls: Tensor

    def __init__(self, recompute: bool = False) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.register_buffer("table", torch.arange(3.0), persistent=False)
        self.register_buffer("later", None)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.same = nn.Identity()
        self.same.register_buffer("shared", self.table)
        self.recompute = recompute

    def forward(self, x: Tensor) -> Tensor:
        self.calls = self.calls + 1  # replaces the tensor
        if self.recompute:
            x = checkpoint(self.norm, x, use_reentrant=False)
        else:
            x = self.norm(x)
        return x * self.same(self.table)


def train_with(model: nn.Module) -> Any:
    def train(ctx: Context) -> None:
        ctx.watch(model, torch.optim.SGD(model.parameters(), lr=0.1))
        for _ in range(2):
            with ctx.step():
                for index in range(2):
                    with ctx.microbatch(index):
                        model(X[index].clone().requires_grad_()).square().sum().backward()

    return train


def test_every_buffer_is_recorded_once_at_the_start_and_after_each_step(record: Any) -> None:
    run = record(train_with(Kept()))
    whole = [id for id in run.rank.tensors if id.kind == "buffer" and id.microbatch is None]
    for step in (INITIAL, 0, 1):
        assert {id.path for id in whole if id.step == step} == {
            "table", "calls", "norm.running_mean", "norm.running_var", "norm.num_batches_tracked"
        }  # fmt: skip
    assert torch.equal(run.get("buffer", "table", step=1), torch.arange(3.0))
    assert int(run.get("buffer", "calls", step=1)) == 4


@pytest.mark.parametrize("recompute", [False, True])
def test_buffers_that_a_forward_changes_are_recorded_in_the_micro_batch(
    record: Any, recompute: bool
) -> None:
    run = record(train_with(Kept(recompute)))
    expected = nn.BatchNorm1d(3)
    for step in range(2):
        for index in range(2):
            expected(X[index])
            found = [
                id
                for id in run.rank.tensors
                if (id.kind, id.step, id.microbatch) == ("buffer", step, index)
            ]
            assert {id.path for id in found} == {
                "calls", "norm.running_mean", "norm.running_var", "norm.num_batches_tracked"
            }  # fmt: skip
            if not recompute:
                assert expected.running_mean is not None
                [mean] = [id for id in found if id.name == "running_mean"]
                assert torch.equal(run.trace.load(0, run.rank.tensors[mean]), expected.running_mean)


def test_a_model_without_buffers_records_none(record: Any) -> None:
    run = record(train_with(nn.Linear(3, 2)))
    assert run.paths("buffer") == []


def test_annotations_define_the_layouts_of_buffers() -> None:
    annotations = Annotations.of(
        {
            "cp_order": "zigzag",
            "buffers": {
                "rotary.cos": {"cp_dim": 0},
                "mask": {"tp_dim": -1},
                "seen": {"local": ["dp"]},
            },
        }
    )
    point = Point.of(tp=2, cp=2, dp=2)
    assert annotations.buffer("layers.0.rotary.cos", point, (4, 4)) == (
        (ZigZag(0, "cp"),), "buffers: rotary.cos"
    )  # fmt: skip
    assert annotations.buffer("mask", point, (4, 4)) == ((Shard(1, "tp"),), "buffers: mask")
    assert annotations.buffer("other", point, (4, 4)) is None
    assert annotations.local_buffer("seen", point)
    assert not annotations.local_buffer("seen", Point.of(tp=2))
    assert annotations.unmatched([], [], ["rotary.cos"]) == ["buffers: mask", "buffers: seen"]


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"tp_partial": True}, "`buffers: mask` has the unknown key 'tp_partial'"),
        ({"cp_dim": 0}, "`buffers: mask` has a cp_dim, so the file must declare how cp splits"),
        ({"tp_dim": "0"}, "`buffers: mask` has `tp_dim: '0'`; tp_dim must be a dimension"),
    ],
)
def test_an_invalid_buffer_annotation_is_refused(entry: dict[str, object], message: str) -> None:
    with pytest.raises(AnnotationError, match=message):
        Annotations.of({"buffers": {"mask": entry}})
