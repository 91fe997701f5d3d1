"""A parameter's layout comes from its attributes, else from annotations; else it is replicated."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from pytest_trainsafe.annotations.declared import Annotations
from pytest_trainsafe.core.indices import LayoutError
from pytest_trainsafe.core.layout import Owned, Shard
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.record.model.parameter_layout import gradient_partial_axes, parameter_layout

POINT = Point.of(tp=2, cp=2, sp=True)
ANNOTATIONS = Annotations.of(
    {"parameters": {"fc.weight": {"tp_dim": 1}, "norm.weight": {"sequence_parallel": True}}}
)


def parameter(**attributes: Any) -> nn.Parameter:
    made = nn.Parameter(torch.zeros(6, 4))
    for name, value in attributes.items():
        setattr(made, name, value)
    return made


def test_attributes_take_precedence_over_annotations() -> None:
    marked = parameter(tensor_model_parallel=True, partition_dim=0, partition_stride=1)
    layout = parameter_layout("fc.weight", marked, POINT, ANNOTATIONS)
    assert layout == ((Shard(0, "tp"),), "attribute")


def test_annotations_take_precedence_over_tensor_model_parallel_false() -> None:
    unmarked = parameter(tensor_model_parallel=False, partition_dim=-1, partition_stride=1)
    found = parameter_layout("fc.weight", unmarked, POINT, ANNOTATIONS)
    assert found == ((Shard(1, "tp"),), "parameters: fc.weight")
    assert parameter_layout("other", unmarked, POINT, ANNOTATIONS) == ((), "attribute")


def test_a_parameter_without_attributes_or_annotations_is_replicated() -> None:
    assert parameter_layout("other", parameter(), POINT, ANNOTATIONS) == ((), "default")


def test_fused_blocks_come_from_partition_blocks_or_partition_stride() -> None:
    blocks = parameter(tensor_model_parallel=True, partition_dim=0, partition_blocks=(8, 2, 2))
    stride = parameter(tensor_model_parallel=True, partition_dim=0, partition_stride=2)
    assert parameter_layout("w", blocks, POINT, ANNOTATIONS)[0] == (Shard(0, "tp", (8, 2, 2)),)
    assert parameter_layout("w", stride, POINT, ANNOTATIONS)[0] == (Shard(0, "tp", (6, 6)),)


def test_tensor_model_parallel_has_no_effect_without_the_tp_axis() -> None:
    marked = parameter(tensor_model_parallel=True, partition_dim=0)
    assert parameter_layout("w", marked, Point.of(cp=2), ANNOTATIONS) == ((), "attribute")


@pytest.mark.parametrize(
    ("attributes", "words"),
    [
        ({"partition_dim": 2}, "fc.weight .*partition_dim 2.*0 to 1"),
        ({"partition_dim": 0, "partition_blocks": (8, 3)}, r"12 rows .*\[8, 3\].* add up to 11"),
        ({"partition_dim": 1, "partition_stride": 3}, "8 rows .*stride 3.* add up to 6"),
    ],
)
def test_attributes_that_contradict_the_shape_are_refused(
    attributes: dict[str, Any], words: str
) -> None:
    marked = parameter(tensor_model_parallel=True, **attributes)
    with pytest.raises(LayoutError, match=words):
        parameter_layout("fc.weight", marked, POINT, ANNOTATIONS)


@pytest.mark.parametrize(
    ("point", "axes"),
    [
        (Point.of(tp=2, cp=2, sp=True), ("cp", "tp")),
        (Point.of(tp=2, sp=True), ("tp",)),
        (Point.of(tp=2, sp=False), ()),
        (Point.of(cp=2, sp=True), ("cp",)),
    ],
)
def test_gradients_are_partial_over_cp_and_with_sequence_parallel_also_over_tp(
    point: Point, axes: tuple[str, ...]
) -> None:
    assert gradient_partial_axes("norm.weight", parameter(), point, ANNOTATIONS) == axes
    marked = parameter(sequence_parallel=True)
    assert gradient_partial_axes("other", marked, point, ANNOTATIONS) == axes
    unmarked = tuple(axis for axis in axes if axis == "cp")
    assert gradient_partial_axes("other", parameter(), point, ANNOTATIONS) == unmarked


@pytest.mark.parametrize("marked", [True, False])
def test_with_expert_parallelism_some_of_the_cp_and_dp_ranks_own_an_expert(marked: bool) -> None:
    expert = parameter(**({"allreduce": False} if marked else {}))
    cut = parameter(tensor_model_parallel=True, partition_dim=0, allreduce=False)
    written = {} if marked else {"parameters": {"experts.*": {"expert_parallel": True}}}
    annotations, point = Annotations.of(written), Point.of(tp=2, dp=2, ep=2)
    owned = Owned(("cp", "dp"), 2)

    assert parameter_layout("experts.3.fc", expert, point, annotations)[0] == (owned,)
    assert parameter_layout("fc", cut, point, annotations)[0] == (Shard(0, "tp"), owned)
    assert parameter_layout("experts.3.fc", expert, POINT, annotations)[0] == ()
    assert parameter_layout("router", parameter(allreduce=True), point, annotations)[0] == ()


@pytest.mark.parametrize(
    ("point", "size", "layout"),
    [
        (Point.of(tp=2, ep=2), 1, (Owned(("tp", "cp", "dp"), 2, 1),)),
        (Point.of(tp=2), 1, (Owned(("tp", "cp", "dp"), 1, 1),)),
        (Point.of(tp=2, dp=2, ep=2), 2, (Shard(0, "tp", (6, 6)), Owned(("cp", "dp"), 2))),
        (Point.of(dp=4), 4, (Shard(0, "dp", (12, 12)), Owned(("tp", "cp", "dp"), 1, 4))),
        (
            Point.of(tp=2, cp=2, dp=2, ep=2),
            4,
            (Shard(0, "cp", (12, 12)), Shard(0, "tp", (6, 6)), Owned(("tp", "cp", "dp"), 2, 4)),
        ),
        (Point.of(), 1, ()),
    ],
)
@pytest.mark.parametrize("marked", [True, False])
def test_expert_tp_size_shards_experts_over_other_ranks_than_tp(
    point: Point, size: int, layout: tuple[Any, ...], marked: bool
) -> None:
    """Megatron-LM sets tensor_model_parallel on expert weights even if they are not sharded."""
    expert = parameter(
        tensor_model_parallel=True,
        partition_dim=0,
        partition_stride=2,
        allreduce=False,
        **({"expert_tp_size": size} if marked else {}),
    )
    entries = {} if marked else {"parameters": {"experts.*": {"expert_tp_size": size}}}

    found = parameter_layout("experts.0.fc1.weight", expert, point, Annotations.of(entries))
    assert found[0] == layout


def test_expert_tp_size_must_be_a_product_of_axis_sizes() -> None:
    odd = parameter(expert_tp_size=2, allreduce=False)
    with pytest.raises(LayoutError, match=r"expert_tp_size of 2.*tp=4.*1, tp, tp \* cp"):
        parameter_layout("e.w", odd, Point.of(tp=4), ANNOTATIONS)
    with pytest.raises(LayoutError, match="expert_tp_size 'two'; it must be the number of ranks"):
        parameter_layout("e.w", parameter(expert_tp_size="two"), POINT, ANNOTATIONS)
