"""The dispatch mode: what it refuses, what enters, and own semantics of a project."""

import sys
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from pytest_trainsafe.arithmetic import (
    Doubles,
    ExactMode,
    MissingSemanticsError,
    NarrowCastError,
    Residues,
    UnseenNumberError,
    call,
    check_semantics,
    rational,
    semantics_of,
    table,
)
from pytest_trainsafe.errors import ArgumentError


def values(*shape):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def test_a_removed_entry_is_named_with_the_recipe():
    entries = table()
    del entries["aten.mul"]
    mode = ExactMode(Residues(), entries)
    x = mode.enter(values(2))
    with mode, pytest.raises(MissingSemanticsError, match=r"aten\.mul .*semantics_of") as raised:
        x * x
    assert raised.value.operator == "aten.mul"
    assert check_semantics("aten.mul", entries) == ["aten.mul has no semantics"]


def test_an_operator_without_semantics_is_named():
    mode = ExactMode(Residues())
    x = mode.enter(values(2))
    with mode, pytest.raises(MissingSemanticsError, match=r"aten\.i0"):
        torch.i0(x)


@pytest.mark.parametrize(
    "unseen",
    [
        lambda: torch.from_numpy(np.array([0.5, 0.25])),
        lambda: torch.frombuffer(bytearray(16), dtype=torch.float64),
        lambda: torch.zeros(2, dtype=torch.float32),
    ],
)
def test_a_real_number_that_enters_unseen_is_noticed(unseen):
    number = unseen()
    mode = ExactMode(Residues())
    x = mode.enter(values(2))
    with mode, pytest.raises(UnseenNumberError, match="enter"):
        x * number


def test_the_same_numbers_are_taken_when_they_are_entered():
    mode = ExactMode(Residues())
    x = mode.enter(torch.from_numpy(np.array([0.5, 0.25])))
    with mode:
        result = x * 3
    assert [rational(each) for each in result] == [1.5, 0.75]


def test_python_numbers_become_what_they_mean():
    with ExactMode(Residues()):
        numbers = torch.tensor([0.1, -2, 1e-6], dtype=torch.float32)
        assert numbers.dtype is torch.float64
        tenth = numbers * torch.full((3,), 10) + torch.ones(3) * torch.arange(3)
    assert [rational(each) for each in tenth] == [1, -19, 2 + Fraction(1, 10**5)]


def test_integers_become_numbers_by_division():
    with ExactMode(Residues()):
        third = torch.tensor(1) / torch.tensor(3)
    assert rational(third) == Fraction(1, 3)


def test_memory_that_nobody_wrote_differs_in_each_run():
    results = []
    for _run in range(2):
        with ExactMode(Residues()):
            results.append(torch.empty(4) * 1)
    assert not results[0].equal(results[1])


def test_factories_on_fake_tensors_compute_nothing():
    with ExactMode(Residues()), FakeTensorMode():
        made = torch.empty_strided((2, 3), (3, 1), dtype=torch.float64)
    assert type(made).__name__ == "FakeTensor"


def test_random_draws_are_those_of_the_generator():
    results = []
    for _run in range(2):
        torch.manual_seed(3)
        with ExactMode(Residues()):
            results.append(torch.randn(4) + torch.nn.functional.dropout(torch.ones(4), 0.5))
    assert results[0].equal(results[1])


def test_a_cast_without_semantics_is_refused():
    mode = ExactMode(Residues())
    x = mode.enter(values(2))
    with mode, pytest.raises(NarrowCastError, match="float4"):
        x.to(torch.float4_e2m1fn_x2)


def test_views_and_writes_through_them_work_on_packed_numbers():
    mode = ExactMode(Residues())
    x = mode.enter(values(2, 3))
    with mode:
        x[:, 1].mul_(2)
        x.t()[2] += 1
        x[0, 0] = 5
    assert rational(x[0, 0]) == 5


def test_index_put_in_place_adds_up():
    mode = ExactMode(Residues())
    x, added = mode.enter(torch.ones(3)), mode.enter(torch.ones(2))
    with mode:
        x.index_put_((torch.tensor([1, 1]),), added, accumulate=True)
    assert [rational(each) for each in x] == [1, 3, 1]


def test_the_table_refuses_a_second_entry_and_a_name_without_namespace():
    table()  # has the built-in semantics, also if this test is the first one of its process
    with pytest.raises(ArgumentError, match=r"aten\.mul"):
        semantics_of("aten.mul", examples=lambda draw: [])(lambda n, x, y: x)
    with pytest.raises(ArgumentError, match="mylib"):
        semantics_of("mul", examples=lambda draw: [])(lambda n, x, y: x)


@torch.library.custom_op("trainsafe_tests::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@pytest.fixture
def own_entries(monkeypatch):
    entries = table()
    monkeypatch.setattr(sys.modules[table.__module__], "_TABLE", entries)
    return semantics_of


def test_a_project_states_and_checks_the_semantics_of_its_own_kernel(own_entries):
    own_entries("trainsafe_tests.twice", examples=lambda draw: [call(draw(2, 3))])(
        lambda n, x: n.multiply(2, x)
    )
    assert check_semantics("trainsafe_tests.twice") == []
    mode = ExactMode(Residues())
    x = mode.enter(values(2))
    with mode:
        results = twice(x), x + x
    assert results[0].equal(results[1])


def test_a_wrong_semantics_of_an_own_kernel_fails_its_check(own_entries):
    own_entries("trainsafe_tests.twice", examples=lambda draw: [call(draw(2, 3))])(
        lambda n, x: n.multiply(3, x)
    )
    assert check_semantics("trainsafe_tests.twice")


def test_operators_that_torch_defines_by_others_run_in_inference_mode():
    mode = ExactMode(Residues())
    x = mode.enter(values(2, 3))
    with mode, torch.inference_mode():
        results = torch.square(x).reshape(3, 2), (x * x).view(3, 2)
    assert results[0].equal(results[1])


def test_the_mode_counts_the_operators_that_met_numbers():
    mode = ExactMode(Doubles())
    x = mode.enter(values(2))
    with mode:
        x * x + x
    assert mode.met == {"aten.mul": 1, "aten.add": 1}


def test_operators_leave_the_memory_of_their_tensors_resizable():
    """As FSDP needs it; torch does not resize memory that numpy has seen."""

    def run(numbers):
        mode = ExactMode(numbers)
        x, index = mode.enter(values(3)), torch.tensor([0, 2])
        with mode:
            torch.log(torch.exp(x - x.amax()).sum())
            x[index].sqrt().square()
        return x, index

    doubles = Doubles()
    run(doubles)
    for each in run(Residues(0, doubles.decisions.replay())):
        each.untyped_storage().resize_(0)


@pytest.mark.parametrize(
    "compute",
    [
        lambda x: x + 1,
        lambda x: x[:3] @ x[3:],
        lambda x: x.reshape(2, 3).mv(x[:3]),
        lambda x: x[:0].prod(),
        lambda x: torch.full((), 0.1),
        lambda x: x.reshape(2, 3).max(0).values,
        lambda x: torch.empty(3),
        lambda x: x.to(torch.float32),
    ],
)
def test_results_are_in_memory_of_their_own_that_can_be_resized(compute):
    doubles = Doubles()
    for numbers in (doubles, Residues(0, doubles.decisions.replay())):
        mode = ExactMode(numbers)
        x = mode.enter(values(6))
        with mode:
            result = compute(x)
        result.untyped_storage().resize_(1024)


def test_a_result_that_is_changed_in_place_changes_no_constant():
    mode = ExactMode(Residues())
    with mode:
        for _ in range(2):
            one = torch.ones(0).prod()
            assert rational(one) == 1
            one.add_(1)
        assert rational(torch.full((), 1.0)) == 1


def test_a_view_of_memory_that_nobody_entered_is_refused():
    foreign = torch.from_numpy(np.ones(4))
    with ExactMode(Residues()), pytest.raises(UnseenNumberError, match=r"aten\.view"):
        foreign.view(2, 2)
