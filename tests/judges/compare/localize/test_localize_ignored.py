"""FSDP2's reduce-scatter is not named as the reduction of parameters that FSDP2 ignores."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest

from pytest_trainsafe.core.point import Point
from pytest_trainsafe.judges.compare.compare import compare
from pytest_trainsafe.judges.compare.localize.code.places import Places
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.trace.facts import Reduction, Site
from pytest_trainsafe.trace.reader import Trace
from tests.support.compare.clipped_traces import rung
from tests.support.compare.traces import only
from tests.support.localize.blamed_traces import PROGRAM, noting
from tests.support.localize.said import said

FSDP = Site("wrapper", "/me/fit.py:25", name="fully_shard")
SCATTER = Reduction("reduce_scatter_tensor(SUM)", ("dp",), "/me/fit.py:30", "", 500)
BUCKET = Reduction("all_reduce(SUM)", ("dp",), "/me/fit.py:33", "", 500)


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> RungTraces:
    """A bias of 16 elements whose gradient is not reduced."""
    double = only("main_grad", "fc1.bias", lambda r, at, part: part * 2)
    return rung(tmp_path_factory.mktemp("ignored"), Point.of(dp=2), double, limit=0)


def with_dtensors(given: RungTraces, *names: str) -> RungTraces:
    """The rung, of whose candidate these parameters are DTensors, as FSDP2 makes them."""
    ranks = []
    for rank in given.candidate.ranks:
        tensors = {
            id: msgspec.structs.replace(event, layout_source="dtensor")
            if id.kind == "param" and id.path in names
            else event
            for id, event in rank.tensors.items()
        }
        ranks.append(dataclasses.replace(rank, tensors=tensors))
    trace = given.candidate
    return dataclasses.replace(given, candidate=Trace(trace.path, trace.manifest, ranks))


def places(given: RungTraces, *lines: Reduction | Site) -> Places:
    return Places(noting(given, FSDP, *lines).candidate, PROGRAM)


def test_a_reduce_scatter_is_not_listed_for_an_ignored_parameter(wrong: RungTraces) -> None:
    others = with_dtensors(wrong, "fc1.weight", "fc2.weight")
    assert places(others, SCATTER).listed("reduction", ["fc1.bias"]) == []
    assert places(others, SCATTER, BUCKET).listed("reduction", ["fc1.bias"]) == [BUCKET]
    _, what = said(places(others, SCATTER).of_phase("reduction", compare(others), ["fc1.bias"]))
    assert what == "fully_shard is applied here and does not shard these parameters"


def test_a_reduce_scatter_is_listed_for_a_parameter_that_fsdp2_shards(wrong: RungTraces) -> None:
    sharded = with_dtensors(wrong, "fc1.weight", "fc1.bias")
    assert places(sharded, SCATTER).listed("reduction", ["fc1.bias"]) == [SCATTER]
    _, what = said(places(sharded, SCATTER).of_phase("reduction", compare(sharded), ["fc1.bias"]))
    does = "reduces the gradients of the parameters that its module had then"
    assert what == f"fully_shard is applied here and {does}"


def test_a_reduce_scatter_of_the_programs_own_is_listed_without_fsdp2(wrong: RungTraces) -> None:
    own = Places(noting(wrong, SCATTER).candidate, PROGRAM)
    assert own.listed("reduction", ["fc1.bias"]) == [SCATTER]
