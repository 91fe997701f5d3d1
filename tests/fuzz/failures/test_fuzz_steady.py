"""A failure that does not occur in every execution of its Point gets no axes."""

from __future__ import annotations

TEST = """
from pytest_trainsafe import trainsafe_fuzz

executions = {{}}

@trainsafe_fuzz("program:train", max_examples=30, tp=[2], dp=[1, 2], layers=[1, 2, 3])
def test_it(point):
    count = executions[point] = executions.get(point, 0) + 1
    {body}
"""
#: Passes or fails by a coin that is thrown for every execution, the same in every run of the test.
COIN = """import hashlib
    coin = hashlib.sha256(f"{point} {count} SEED".encode()).digest()[0]
    assert coin % 2, 'lost'
"""


def run(fuzzed, body):
    fuzzed.makepyfile(test_it=TEST.format(body=body))
    return fuzzed.runpytest_inprocess("-p", "no:cacheprovider")


def test_a_program_that_fails_in_half_of_its_executions_is_flaky_and_gets_no_axes(fuzzed):
    for seed in range(8):
        result = run(fuzzed, COIN.replace("SEED", str(seed)))

        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines(["E *FlakyProgram: trainsafe: program.train is flaky at *"])
        result.stdout.no_fnmatch_line("*interaction*")


def test_a_point_that_passed_once_by_chance_makes_no_axis_needed(fuzzed):
    """The Point at layers=1 passes only the first time; the failure at layers=2 is steady."""
    result = run(fuzzed, "assert point.layers == 1 and count == 1")

    result.stdout.fnmatch_lines(
        ["E *flaky at tp=2 * layers=1, *", "E *flaky  * of 4 executions here, 1 passed and 3 fai*"]
    )
    result.stdout.no_fnmatch_line("*needs layers*")


def test_a_failure_that_repeats_gets_its_axes(fuzzed):
    result = run(fuzzed, "assert point.layers == 1")

    result.stdout.fnmatch_lines(["E *interaction   needs layers >= 2; independent of dp"])
