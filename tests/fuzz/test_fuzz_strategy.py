"""`parallel_points` draws valid Points of a program, and refuses what it cannot draw."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import pytest
from hypothesis import find, given

from pytest_trainsafe import Point, parallel_points
from pytest_trainsafe.errors import ArgumentError, InvalidProgramError, SweepError
from pytest_trainsafe.reference_models import gpt
from pytest_trainsafe.sweep import Mesh, divides, on_mesh, requires
from pytest_trainsafe.sweep.marker import read_marker
from pytest_trainsafe.sweep.program import Parameter, Program, resolve
from pytest_trainsafe.sweep.search.values import awkward, open_values
from pytest_trainsafe.sweep.validity import invalid


@requires(divides("heads", "tp"))
def train(ctx, heads=4, layers=2, tied=False, rate=0.1, schedule="gpipe"):
    raise AssertionError("nothing here is trained")


@on_mesh(Mesh("copy", "shard", "tp", roles={"copy": "dp", "shard": "dp"}))
def train_on_mesh(ctx, layers=2):
    raise AssertionError("nothing here is trained")


FITTING: dict[str, Any] = dict.fromkeys(
    (
        *("tp", "cp", "dp", "pp", "sp", "zero", "recompute", "microbatches"),
        *("layers", "heads", "seq_len", "batch_size", "vocabulary", "dtype"),
    ),
    ...,
)
POINTS = parallel_points(
    gpt.train,
    **FITTING,
    args={"hidden": 24},
)


@given(point=POINTS)
def test_every_drawn_point_of_the_reference_model_is_valid(point):
    program = resolve(gpt.train)
    arguments = {name: value for name, value in point if name in program.parameters}

    assert invalid(point, program.complete({**arguments, "hidden": 24}), program.rules, 4) is None


@pytest.mark.parametrize(
    "wanted",
    [
        lambda p: p.size("tp") == 2 and p.size("cp") == 2 and not p.sp,
        lambda p: p.size("dp") == 2 and p.size("pp") == 2 and p.zero,
        lambda p: p.size("cp") == 2 and p.seq_len == 64,
    ],
)
def test_combinations_that_bugs_need_are_drawn(wanted):
    assert wanted(find(POINTS, wanted))


@given(point=parallel_points(train_on_mesh, copy=..., shard=[1, 2], tp=range(1, 3)))
def test_mesh_axes_of_a_program_are_drawn(point):
    assert point.mesh.axes == ("copy", "shard", "tp")
    assert 2 <= point.world_size <= 4


def test_open_values_of_a_size_surround_its_default():
    assert awkward(4) == (1, 2, 3, 4, 5, 8)
    assert awkward(1) == (1, 2, 3)
    assert awkward(0) == (0, 1)
    program = read_marker([train], {"tp": [1]}).program
    assert open_values(program, "tp", 3) == (1, 2, 3)
    assert open_values(program, "tied", 3) == (False, True)
    dtypes = open_values(program, "dtype", 3)
    assert dtypes == ("float64", "float32", "bfloat16", "float16", "exact")


@pytest.mark.parametrize("name", ["vocabulary", "vocab_size", "padded_vocab", "num_classes"])
def test_open_values_of_a_number_of_classes_leave_out_one(name):
    """A softmax over one class is constant, so no gradient could be wrong."""
    assert open_values(_program(name, 11), name, 4) == (2, 3, 10, 11, 12, 22)
    assert open_values(_program(name, 1), name, 4) == (1, 2, 3)
    assert open_values(_program("subclasses", 4), "subclasses", 4)[0] == 1


def _program(name, default):
    parameter = Parameter(name, default)
    return Program("m:train", "", parameters={name: parameter})


@pytest.mark.parametrize(
    ("words", "error", "message"),
    [
        ({}, SweepError, "needs at least one axis"),
        ({"tp": ..., "schedule": ...}, SweepError, "'schedule' is given as `...`.*list its values"),
        ({"rate": ...}, SweepError, "'rate' is given as `...`"),
        ({"tq": [1]}, SweepError, "unknown axis 'tq'"),
        ({"tp": [0]}, SweepError, "takes an integer >= 1, not 0"),
        ({"tp": [1], "max_world_size": 0}, ArgumentError, "max_world_size takes an integer from 1"),
    ],
)
def test_an_axis_that_cannot_be_drawn_is_an_error(words, error, message):
    with pytest.raises(error, match=message):
        parallel_points(train, **words)


def test_an_argument_that_is_no_program_is_an_error():
    with pytest.raises(InvalidProgramError, match="a program is a function"):
        parallel_points(3, tp=...)


def test_contradicting_constraints_are_an_error_when_drawn():
    with pytest.raises(SweepError, match="train: none of the 1 points of these axes is valid"):
        find(parallel_points(train, tp=[3], heads=[4]), lambda point: isinstance(point, Point))


def test_without_hypothesis_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "hypothesis", None)
    monkeypatch.delitem(sys.modules, "pytest_trainsafe.fuzz")

    with pytest.raises(ImportError, match=r"pip install 'pytest-trainsafe\[fuzz\]'"):
        importlib.import_module("pytest_trainsafe.fuzz")
