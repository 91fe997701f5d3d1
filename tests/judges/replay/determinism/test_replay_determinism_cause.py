"""A cause is named only if Runs agree and differ again, on written traces of imagined programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from pytest_trainsafe.judges.replay.determinism.cause import Cause, find_cause
from pytest_trainsafe.judges.replay.determinism.divergence import Divergence
from pytest_trainsafe.judges.replay.determinism.variation import variables
from pytest_trainsafe.launch import GroupFailure
from pytest_trainsafe.trace.operators import OutsideRead
from pytest_trainsafe.trace.reader import Trace
from pytest_trainsafe.trace.run_spec import RunSpec
from pytest_trainsafe.trace.schema import StepEvent
from tests.support.replay.determinism_traces import Rank, loss, operator, written

UNVARIED, SAME, HASHED, FILLED = (), variables(1, 1), variables(2, 1), variables(1, 2)

CLOCK = OutsideRead("time.time", "program.py:3", 0)
BYTES = OutsideRead("os.urandom", "program.py:5", 0)
DATE = OutsideRead("datetime.now", "program.py:7", 0)


def rank(value: int, *before: OutsideRead) -> Rank:
    """A rank whose loss, and the operator that computes it from no known tensor, are `value`."""
    made = operator(value, value, at="program.py:9")
    return [*before, made, (loss(0), torch.full((3,), float(value)))]


def cause(folder: Path, run: Callable[[RunSpec, int], Rank]) -> Cause:
    """What is found if Run number `n`, from 0, of a RunSpec is `run(spec, n)`."""
    number = 0

    def make(specs: Sequence[RunSpec]) -> list[Trace]:
        nonlocal number
        traces = []
        for each in specs:
            traces.append(written(folder / f"run{number}", run(each, number)))
            number += 1
        return traces

    spec = RunSpec(program="a_program:train", dtype="float32")
    return find_cause(spec, Divergence("values", 0, 0, loss(0)), make)


@pytest.mark.parametrize(("depends_on", "code"), [(HASHED, "order"), (FILLED, "uninitialised")])
def test_what_changes_with_one_variation_alone_is_its_effect(tmp_path, depends_on, code):
    found = cause(tmp_path, lambda spec, _: rank(1 if spec.environ == depends_on else 0))

    assert found.code == code


def test_memory_that_is_filled_by_chance_is_uninitialised_memory(tmp_path):
    def run(spec: RunSpec, number: int) -> Rank:
        return rank({SAME: 100, FILLED: 200}.get(spec.environ, number))

    assert cause(tmp_path, run).code == "uninitialised"


def test_a_result_of_the_process_is_no_order_of_a_set(tmp_path):
    def run(spec: RunSpec, number: int) -> Rank:
        return rank(0 if spec.environ == UNVARIED else number)  # forked processes are alike

    found = cause(tmp_path, run)

    assert found.code == "unknown"
    assert "depends on addresses" in found.text
    assert "PYTHONHASHSEED" not in found.text.partition(". Two Runs")[0]


@pytest.mark.parametrize("varied", [HASHED, FILLED])
def test_runs_that_agree_once_by_chance_prove_nothing(tmp_path, varied):
    made: list[RunSpec] = []

    def run(spec: RunSpec, number: int) -> Rank:
        made.append(spec)
        # The first time that something is varied, Runs differ only where it is; then they all do.
        return rank(int(spec.environ == varied) if number < 6 else number)

    assert cause(tmp_path, run).code == "unknown"
    assert len(made) == len(set(made)), "a Run that is not new proves nothing"


def test_a_difference_that_does_not_occur_again_is_called_rare(tmp_path):
    found = cause(tmp_path, lambda spec, _: rank(0, DATE))

    assert found.code == "unknown"
    assert "did not occur again" in found.text
    assert "datetime.now at program.py:7" in found.text


@pytest.mark.parametrize(
    ("read", "code"),
    [
        (CLOCK, "time"),
        (BYTES, "unseeded"),
        (OutsideRead("os.getpid", "program.py:4", 0), "process"),
        (OutsideRead("random.Random.seed(None)", "program.py:4", 0), "unseeded"),
        (OutsideRead("torch.seed", "program.py:4", 0), "unseeded"),
    ],
)
def test_a_read_is_the_cause_if_all_runs_agree_once_it_is_fixed(tmp_path, read, code):
    def run(spec: RunSpec, number: int) -> Rank:
        return rank(100) if spec.sealed else rank(number, read)

    found = cause(tmp_path, run)

    assert (found.code, found.source) == (code, read.at)
    assert f"{read.what} is called before this, at {read.at}; in 4 Runs" in found.text


def test_a_read_that_makes_a_difference_only_in_some_runs_is_found(tmp_path):
    def run(spec: RunSpec, number: int) -> Rank:
        # The Runs that vary nothing agree by chance, and so do those in new processes but one.
        return rank(0) if spec.sealed else rank(int(number == 3), BYTES)

    assert cause(tmp_path, run).code == "unseeded"


def test_one_of_several_reads_is_not_called_the_only_cause(tmp_path):
    def run(spec: RunSpec, number: int) -> Rank:
        return rank(100) if spec.sealed else rank(number, BYTES, CLOCK)

    found = cause(tmp_path, run)

    assert (found.code, found.source) == ("unseeded", BYTES.at)
    assert "and so is time.time at program.py:3" in found.text
    assert "at least one of them" in found.text


def test_sealed_runs_that_agree_once_by_chance_prove_nothing(tmp_path):
    def run(spec: RunSpec, number: int) -> Rank:
        return rank(100 if number in (2, 3) else number, *([] if spec.sealed else [CLOCK]))

    found = cause(tmp_path, run)

    assert found.code == "unknown"


def test_a_read_that_cannot_be_fixed_is_named_as_a_suspect_alone(tmp_path):
    found = cause(tmp_path, lambda spec, number: rank(number, DATE))

    assert found.code == "unknown"
    assert "from an unknown source" in found.text
    assert "datetime.now at program.py:7" in found.text


@pytest.mark.parametrize(
    ("read", "words"),
    [
        (OutsideRead("id", "program.py:7", 0), "with results that are addresses: id at"),
        (OutsideRead("threading.Thread.start", "program.py:7", 0), "Threads that the program"),
    ],
)
def test_an_address_and_a_thread_are_named_as_suspects_without_fixed_runs(tmp_path, read, words):
    made: list[RunSpec] = []

    def run(spec: RunSpec, number: int) -> Rank:
        made.append(spec)
        return rank(number, read)

    found = cause(tmp_path, run)

    assert found.code == "unknown"
    assert words in found.text
    assert f"{read.what} at program.py:7" in found.text
    assert not any(spec.sealed for spec in made)


def test_a_thread_is_no_suspect_where_a_read_is_the_cause(tmp_path):
    thread = OutsideRead("threading.Thread.start", "program.py:7", 0)

    def run(spec: RunSpec, number: int) -> Rank:
        return rank(100, thread) if spec.sealed else rank(number, CLOCK, thread)

    found = cause(tmp_path, run)

    assert (found.code, found.source) == ("time", CLOCK.at)
    assert "thread" not in found.text.lower()


def test_a_program_that_fails_with_fixed_values_still_has_its_reads_named(tmp_path):
    def run(spec: RunSpec, number: int) -> Rank:
        if spec.sealed:
            raise GroupFailure.__new__(GroupFailure)
        return rank(number, BYTES)

    found = cause(tmp_path, run)

    assert found.code == "unknown"
    assert "os.urandom at program.py:5" in found.text


def test_different_numbers_of_steps_are_named(tmp_path):
    def run(spec: RunSpec, number: int) -> Rank:
        steps = [StepEvent(n, 1, "", "", optimizer_stepped=True, seconds=0.1) for n in range(9)]
        return [*steps[: 2 + number], (loss(0), torch.ones(3))]

    found = cause(tmp_path, run)

    assert found.code == "unknown"
    assert "different numbers of steps, 2 and 3" in found.text


def test_micro_batches_in_another_order_are_named(tmp_path):
    def run(spec: RunSpec, number: int) -> Rank:
        first = number % 2
        order = [operator(each, each, microbatch=each) for each in (first, 1 - first)]
        return [*order, (loss(0), torch.full((3,), float(number)))]

    found = cause(tmp_path, run)

    assert found.operator is not None
    assert "it is in micro-batch 0 in one Run, and it is in micro-batch 1" in found.operator.text
    assert "micro-batches in another order" in found.text
