"""Proposed layouts of modules leave the declared averages of gradients over ranks as they are."""

from __future__ import annotations

import dataclasses

import msgspec
import torch

from pytest_trainsafe.core.layout import Placement, Scaled, Shard
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.judges.compare.compare import compare
from pytest_trainsafe.judges.compare.declarations.adopt import adopt
from pytest_trainsafe.judges.compare.declarations.propose import propose
from pytest_trainsafe.judges.compare.declarations.suggest import MissingLayout
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.trace.reader import Trace
from tests.support.compare.traces import Bench, Record
from tests.support.compare.undeclared_layouts import undeclared

BOTH = Point.of(tp=2, dp=2)


def twice(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
    """Gradients of a loss that two dp ranks each average, before the reduction averages them."""
    return part * 2 if record.id.kind in ("activation_grad", "param_grad") else part


def averaged(rung: RungTraces) -> RungTraces:
    """The rung with gradients declared as means over dp."""
    ranks = []
    for rank in rung.candidate.ranks:
        tensors = {
            id: msgspec.structs.replace(event, layout=(*event.layout, Scaled("dp")))
            if id.kind in ("activation_grad", "param_grad")
            else event
            for id, event in rank.tensors.items()
        }
        ranks.append(dataclasses.replace(rank, tensors=tensors))
    trace = rung.candidate
    return dataclasses.replace(rung, candidate=Trace(trace.path, trace.manifest, ranks))


def of_parameter(id: TensorId, placement: Placement) -> bool:
    return not id.kind.startswith("activation")


def test_module_layouts_explain_a_program_whose_gradients_are_declared_means(bench: Bench) -> None:
    rung = averaged(undeclared(bench.rung(BOTH, twice, dtype="float64"), of_parameter))
    found = propose(rung, compare(rung), ())
    assert found is not None
    assert found.wanted == {"modules": {"fc1": {"output": {"tp_dim": -1}}}}
    assert (found.left, found.unexplained) == (None, "")


def test_a_layout_of_a_gradient_alone_leaves_the_declared_mean(bench: Bench) -> None:
    def keep(id: TensorId, placement: Placement) -> bool:
        return not (id.kind == "activation_grad" and id.module == "fc1")

    rung = averaged(undeclared(bench.rung(BOTH, twice, dtype="float64"), keep))
    found = propose(rung, compare(rung), ())
    assert found is not None
    assert found.wanted == {"modules": {"fc1": {"output_grad": {"tp_dim": -1}}}}
    assert found.left is None


def layouts(trace: Trace, kind: str) -> set[tuple[Placement, ...]]:
    """The layouts of the tensors of this kind that the module fc1 has."""
    return {
        event.layout
        for rank in trace.ranks
        for id, event in rank.tensors.items()
        if (id.kind, id.module) == (kind, "fc1")
    }


def test_layouts_found_at_one_point_keep_the_declared_means_of_another(bench: Bench) -> None:
    """The search for an axis adopts them at Points without one axis, where the means differ."""
    cut, mean = Shard(1, "tp"), Scaled("dp")
    output = MissingLayout("modules", "fc1", "output", (), (cut,), "default", 2)
    gradient = dataclasses.replace(output, place="output_grad", known=(mean,))
    of_dp = averaged(undeclared(bench.rung(Point.of(dp=2), twice, dtype="float64")))
    of_tp = undeclared(bench.rung(Point.of(tp=2), dtype="float64"))
    for needs in ([output], [output, gradient]):
        assert layouts(adopt(of_dp.candidate, needs), "activation_grad") == {(cut, mean)}
        assert layouts(adopt(of_tp.candidate, needs), "activation_grad") == {(cut,)}
        assert layouts(adopt(of_dp.candidate, needs), "activation") == {(cut,)}
