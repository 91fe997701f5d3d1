"""An axis counts as in effect only if the trace shows its consequence."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_trainsafe.core.layout import Layout, Owned, Partial, Shard, Slices
from pytest_trainsafe.core.point import AxisValue, Point
from pytest_trainsafe.core.tensor_id import INITIAL, Kind, TensorId
from pytest_trainsafe.judges.compare.guards.in_effect import why_without_effect
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.trace.reader import RankTrace, Trace
from pytest_trainsafe.trace.run_spec import RunSpec
from pytest_trainsafe.trace.schema import ModuleEvent, NoteEvent, TensorEvent
from pytest_trainsafe.trace.writer import manifest_of

Held = tuple[Kind, str, tuple[int, ...], Layout]


def trace(point: Point, *ranks: RankTrace) -> Trace:
    """A trace in memory; its values are never loaded."""
    manifest = manifest_of(
        RunSpec(
            program="model.train", axes=point.values, mesh=point.mesh.declared, dtype="float64"
        ),
        "cpu",
    )
    return Trace(Path("nowhere"), manifest, list(ranks))


def rank(
    point: Point,
    number: int = 0,
    *,
    modules: Sequence[str] = (),
    tensors: Sequence[Held] = (),
    notes: Sequence[str] = (),
) -> RankTrace:
    """A rank whose modules have a weight each; a tensor is its kind, module, shape and layout."""
    made = RankTrace(number, point.coordinates(number))
    made.modules = {
        name: ModuleEvent(name, "Linear", "model.py:1", ("weight",)) for name in modules
    }
    made.facts = {NoteEvent: [NoteEvent("ran", axis) for axis in notes]}
    for seq, (kind, module, shape, layout) in enumerate(tensors):
        step, microbatch = (INITIAL, None) if kind == "param" else (0, 0)
        id = TensorId(step, microbatch, kind, module, "output")
        made.tensors[id] = TensorEvent(seq, id, "float64", shape, "", layout)
    return made


def rung(candidate: Trace, reference: Trace | None = None) -> RungTraces:
    return RungTraces("float64", candidate, reference or candidate)


def at(**axes: AxisValue) -> Point:
    return Point.of(axes)


@pytest.mark.parametrize(
    ("held", "shared_out"),
    [
        ([["router", "experts.0", "experts.1"]] * 2, False),
        ([["router", "experts.0"], ["router", "experts.1"]], True),
    ],
    ids=["every rank holds all experts", "each holds its own"],
)
def test_ep_is_in_effect_if_some_rank_lacks_a_parameter(
    held: list[list[str]], shared_out: bool
) -> None:
    point = at(dp=2, ep=2)
    ranks = (rank(point, number, modules=names) for number, names in enumerate(held))

    found = why_without_effect(rung(trace(point, *ranks)), "ep")

    reason = "every rank holds every parameter of its stage, so no experts are distributed"
    assert found == (None if shared_out else reason)


def test_ep_is_in_effect_if_a_tensor_of_all_experts_is_sharded_over_dp() -> None:
    point = at(dp=2, ep=2)

    def held(layout: Layout) -> Trace:
        tensor: Held = ("param", "experts", (2, 8), layout)
        return trace(
            point, *(rank(point, n, modules=["experts"], tensors=[tensor]) for n in range(2))
        )

    assert why_without_effect(rung(held((Shard(0, "dp"),))), "ep") is None
    assert why_without_effect(rung(held((Owned(("cp", "dp"), 2),))), "ep") is not None


def test_ep_is_not_in_effect_if_only_pipeline_stages_hold_different_parameters() -> None:
    point = at(pp=2, dp=2, ep=2)
    stages = [["layers.0"], ["layers.1"]]
    ranks = [rank(point, n, modules=stages[point.coordinates(n)["pp"]]) for n in range(4)]

    assert why_without_effect(rung(trace(point, *ranks)), "ep") is not None


@pytest.mark.parametrize(
    ("tensor", "split"),
    [
        (("activation", "norm", (2, 4, 8), ()), False),
        (("activation", "fc1", (2, 4, 8), (Shard(2, "tp"),)), False),
        (("activation", "norm", (2, 4, 8), (Shard(1, "tp"),)), True),
        (("activation_grad", "norm", (2, 4, 8), (Shard(1, "tp"),)), True),
        (("activation", "norm", (2, 4, 8), (Shard(1, "cp"),)), False),
        (
            (
                "activation",
                "norm",
                (2, 2, 8),
                (Slices.rectangle((0, 2, 0), (2, 2, 8), (2, 4, 8), ("tp",)),),
            ),
            True,
        ),
        (("param_grad", "norm", (8,), (Partial("tp"),)), True),
    ],
    ids=[
        "whole sequences",
        "cut along the width",
        "cut along the sequence",
        "its gradient is",
        "cut over cp",
        "an explicit rectangle",
        "a partial sum",
    ],
)
def test_sp_is_in_effect_if_a_sequence_is_sharded_or_a_gradient_is_partial_over_tp(
    tensor: tuple[Kind, str, tuple[int, ...], Layout], split: bool
) -> None:
    point = at(tp=2, sp=True)
    found = why_without_effect(
        rung(trace(point, *(rank(point, n, tensors=[tensor]) for n in range(2)))), "sp"
    )

    assert (found is None) == split


LEAVES = ["embedding", "layers.0", "layers.1", "layers.2", "layers.3", "head"]


@pytest.mark.parametrize(
    ("stages", "interleaved"),
    [
        ([LEAVES[:3], LEAVES[3:]], False),
        ([["embedding", "layers.0", "layers.2"], ["layers.1", "layers.3", "head"]], True),
        ([["embedding", "layers.0", "layers.3", "head"], ["layers.1", "layers.2"]], True),
    ],
    ids=["one chunk a rank", "interleaved", "a chunk from each end"],
)
def test_vpp_is_in_effect_if_a_rank_computes_several_separate_parts_of_the_model(
    stages: list[list[str]], interleaved: bool
) -> None:
    def called(names: list[str]) -> list[tuple[Kind, str, tuple[int, ...], Layout]]:
        # These two are called on every stage, and do not show how the model is split.
        return [("activation", name, (2, 4, 8), ()) for name in [*names, "layers", "rotary"]]

    point, alone = at(pp=2, vpp=2), at()
    reference = trace(alone, rank(alone, tensors=called(LEAVES)))
    ranks = (rank(point, n, tensors=called(names)) for n, names in enumerate(stages))

    found = why_without_effect(rung(trace(point, *ranks), reference), "vpp")

    assert (found is None) == interleaved


@pytest.mark.parametrize("axis", ["recompute", "compile"])
def test_recompute_and_compile_are_in_effect_if_a_rank_noted_that_they_ran(axis: str) -> None:
    point = at(pp=2)
    plain = trace(point, rank(point, 0), rank(point, 1))
    noted = trace(point, rank(point, 0), rank(point, 1, notes=[axis]))

    assert why_without_effect(rung(plain), axis) is not None
    assert why_without_effect(rung(noted), axis) is None


@pytest.mark.parametrize("axis", ["ep", "sp", "vpp"])
def test_an_axis_is_not_doubted_if_the_trace_has_no_evidence_about_it(axis: str) -> None:
    point = at(tp=2)

    assert why_without_effect(rung(trace(point, rank(point, 0), rank(point, 1))), axis) is None
