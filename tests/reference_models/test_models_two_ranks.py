"""Programs of two ranks: healthy ones train; silent errors make ranks differ or mismatch."""

from __future__ import annotations

import math

import pytest

from pytest_trainsafe.launch import GroupFailure
from pytest_trainsafe.reference_models import healthy, silent_errors
from tests.support.reference_models.two_ranks import run_all

PARTED = ("pt-96600", "ds-1801", "pt-104336", "x-ddp")
STUCK = ("ds-5794", "ds-6089", "ds-6714")

#: The fact that is equal on both ranks unless the error happens.
SHARED = {
    "pt-96600": "weights",
    "ds-1801": "replicated",
    "pt-104336": "weights",
    "x-ddp": "weights",
}


def _module(name: str) -> str:
    return silent_errors.program(silent_errors.find(name)).__module__


def test_two_ranks_hold_different_values_only_with_a_silent_error(torchrun_group) -> None:
    programs = [each for each in healthy.PROGRAMS if each.axis]
    modules = [healthy.program(each).__module__ for each in programs]
    jobs = [
        *((module, {}) for module in modules),
        *((_module(name), {"faulty": False}) for name in (*PARTED, *STUCK)),
        *((_module(name), {"faulty": True}) for name in PARTED),
    ]

    first, second = (iter(runs) for runs in torchrun_group.run(run_all, jobs, world_size=2))

    for each in programs:
        ranks = next(first), next(second)
        assert not any(error for _, _, error in ranks), (each.name, ranks)
        losses = [sum(pair) for pair in zip(*(run[0] for run in ranks if run[0]), strict=True)]
        assert losses, each.name
        assert all(map(math.isfinite, losses)), each.name
        if each.falls:
            assert losses[-1] < losses[0], (each.name, losses)
    together = {}
    for name in (*PARTED, *STUCK):
        ranks = next(first), next(second)
        assert not any(error for _, _, error in ranks), (name, ranks)
        together[name] = ranks
        if name in PARTED:
            assert ranks[0][1] == ranks[1][1], name
    capacities = [run[1]["capacities"] for run in together["ds-5794"]]
    assert capacities[0][0] == capacities[1][0]
    assert capacities[0][1] != capacities[1][1]  # in the step that triggers the error
    assert [run[1]["reductions"] for run in together["ds-6714"]] == [[1, 1, 1]] * 2
    for name in PARTED:
        one, other = next(first), next(second)
        assert one[1][SHARED[name]] != other[1][SHARED[name]], name
        trigger = silent_errors.find(name).trigger
        assert isinstance(trigger, int)
        for rank, run in enumerate((one, other)):
            # A step's loss is computed before its update.
            assert run[0][: trigger + 1] == together[name][rank][0][: trigger + 1], name
    assert [*first] == [*second] == []


def test_the_other_silent_errors_are_reported_as_collective_mismatches(torchrun_group) -> None:
    jobs = [(_module(name), {"faulty": True, "patience": 0.5}) for name in STUCK]

    with pytest.raises(GroupFailure) as failure:
        torchrun_group.run(run_all, jobs, world_size=2)

    mismatches = [line for line in str(failure.value).splitlines() if "collective mismatch" in line]
    for name, place in zip(STUCK, ("ds_5794.py", "ds_6089.py", "ds_6714.py"), strict=True):
        assert any(place in line for line in mismatches), (name, mismatches)
    assert any("recv 73" in line and "experts.py" in line for line in mismatches)
