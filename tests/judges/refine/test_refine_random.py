"""Captures of random parallel programs are proved, and a fault in each is refuted at its line.

`benchmarks/bench_refine_random.py` draws as many programs as one likes; here are four of them.
"""

import sys
from pathlib import Path

import pytest

# Appended, so that modules of the benchmarks do not shadow other modules.
sys.path.append(str(Path(__file__).resolve().parents[3] / "benchmarks"))

from _refine_programs import drawn
from bench_refine_random import compiled, difference, examined

SEEDS = {132: "cp=2", 164: "tp=2", 297: "ep=2", 366: "tp=2 sp"}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_program_is_proved_and_a_fault_in_it_is_refuted_at_its_line(seed, tmp_path):
    program, right, fault, wrong = examined(seed, tmp_path)
    assert program.title.endswith(f" on {SEEDS[seed]}")
    assert right.kind == "proved", right.report
    assert fault is not None
    assert wrong is not None
    assert wrong.kind == "refuted"
    assert wrong.line in program.places(fault), wrong.report


@pytest.mark.parametrize("seed", range(20, 26))
def test_the_ranks_of_a_random_program_compute_what_one_device_computes(seed, tmp_path):
    program = drawn(seed)
    whole, parts = (compiled(program, ranks, None, tmp_path) for ranks in (False, True))
    assert difference(program, whole, parts, seed) < 1e-9


def test_the_ranks_of_a_faulty_program_do_not(tmp_path):
    program = drawn(366)
    whole = compiled(program, False, None, tmp_path)
    fault = next(each for each in program.faults if each.kind == "result cut but not reduced")
    assert difference(program, whole, compiled(program, True, fault, tmp_path), 366) > 1e-3
