"""`trainsafe_fuzz` makes a hypothesis test, whose failures are explained and replayed."""

from __future__ import annotations

import pytest

#: A bug of tp and cp together, over four axes.
BUGGY = """
from counted import ran
from pytest_trainsafe import trainsafe_fuzz

@trainsafe_fuzz("program:train", max_examples=60, tp=..., cp=..., dp=..., heads=[2, 4], layers=...)
def test_buggy(point):
    ran(point)
    assert not (point.size("tp") > 1 and point.size("cp") > 1), "planted"
"""
SMALLEST = "tp=2 cp=2 dp=1 heads=2 layers=1"


def test_a_failure_is_reduced_to_its_axes_with_an_example_line_and_a_command(fuzzed):
    fuzzed.makepyfile(test_buggy=BUGGY)

    result = fuzzed.runpytest_inprocess()

    result.assert_outcomes(failed=1)
    point = SMALLEST.replace(" ", ", ")
    result.stdout.fnmatch_lines(
        [
            f"E *trainsafe: fuzzing program.train found a failing point: {SMALLEST}",
            "E *interaction   needs tp=2 (passes with 1) and cp=2 (passes with 1); indep*",
            "E * not varied alone, as no other value is valid here: dp",
            "E *searched * points run by the search, after * examples",
            f"E *example * @example(point=Point.of({point}))",
            f"E *rerun * pytest test_buggy.py::test_buggy --trainsafe-sweep {SMALLEST}",
            "E *AssertionError: planted",
            f"E *   point=Point.of({point}),",
        ]
    )


def test_the_next_run_begins_with_the_smallest_failing_point(fuzzed, ran):
    fuzzed.makepyfile(test_buggy=BUGGY)
    fuzzed.runpytest_inprocess()
    first = ran()

    fuzzed.runpytest_inprocess().assert_outcomes(failed=1)

    assert first[0] != SMALLEST
    assert ran()[0] == SMALLEST


def test_the_rerun_command_runs_only_the_failing_point_and_keeps_the_saved_example(fuzzed, ran):
    fuzzed.makepyfile(test_buggy=BUGGY)
    fuzzed.runpytest_inprocess()
    ran()

    again = fuzzed.runpytest_inprocess("--trainsafe-sweep", *SMALLEST.split())
    again.assert_outcomes(failed=1)
    assert set(ran()) == {SMALLEST}

    fuzzed.runpytest_inprocess("--trainsafe-sweep", "tp=1").assert_outcomes(passed=1)
    assert all(line.startswith("tp=1 ") for line in ran())
    fuzzed.runpytest_inprocess("--trainsafe-max-world-size=2").assert_outcomes(passed=1)
    ran()
    fuzzed.runpytest_inprocess()
    assert ran()[0] == SMALLEST


def test_a_failure_is_found_again_with_a_damaged_example_database(fuzzed, ran):
    fuzzed.makepyfile(test_buggy=BUGGY)
    fuzzed.runpytest_inprocess()
    ran()
    saved = [file for file in (fuzzed.path / "examples").rglob("*") if file.is_file()]
    assert saved
    for number, file in enumerate(saved):
        file.write_bytes((b"", b"\xff" * 1000, b"no example")[number % 3])

    result = fuzzed.runpytest_inprocess()

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E *needs tp=2 (passes with 1) and cp=2 (passes with 1); *"])


def test_examples_are_the_same_in_workers_with_another_hash_seed(fuzzed, ran, monkeypatch):
    pytest.importorskip("xdist")
    fuzzed.makepyfile(
        test_clean="""
        from counted import ran
        from pytest_trainsafe import trainsafe_fuzz

        @trainsafe_fuzz("program:train", max_examples=15, tp=..., cp=..., layers=..., dtype=...)
        def test_one(point):
            ran(point, "one")

        @trainsafe_fuzz("program:train", max_examples=15, dp=..., cp=..., layers=..., dtype=...)
        def test_two(point):
            ran(point, "two")
        """
    )
    fuzzed.runpytest_inprocess().assert_outcomes(passed=2)
    here = ran("one"), ran("two")
    assert len(here[0]) > 5

    monkeypatch.setenv("PYTHONHASHSEED", "1")
    result = fuzzed.runpytest_subprocess("-n", "2", "-v")

    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines_random(
        [f"*PASSED* test_clean.py::test_{name} *" for name in ("one", "two")]
    )
    assert (ran("one"), ran("two")) == here


def test_an_explicit_example_runs_first_and_examples_can_use_fixtures(fuzzed, ran):
    fuzzed.makepyfile(
        test_example="""
        import pytest
        from hypothesis import example
        from counted import ran
        from pytest_trainsafe import Point, trainsafe_fuzz

        @pytest.fixture(scope="module")
        def word():
            return "word"

        class TestIt:
            @trainsafe_fuzz("program:train", max_examples=5, tp=[1, 2], layers=[1, 2, 3])
            @example(point=Point.of(tp=2, layers=3))
            def test_it(self, word, trainsafe, point):
                assert word == "word"
                assert trainsafe.point == point
                assert trainsafe.candidate_arguments["layers"] == point.layers
                ran(point)
        """
    )

    fuzzed.runpytest_inprocess().assert_outcomes(passed=1)

    assert ran()[0] == "tp=2 layers=3"


@pytest.mark.parametrize(
    ("point", "message"),
    [
        (
            "tp=2, pp=2",
            "@example names the axis 'pp', which the test does not declare; *",
        ),
        ("tp=8", "@example has tp=8, and the test declares tp as 2, 3; add the value to the axis"),
        (
            "tp=3, heads=4",
            "@example has an invalid point, tp=3 heads=4: heads=4 is not *",
        ),
    ],
)
def test_an_explicit_example_that_is_no_valid_point_of_the_test_is_an_error(fuzzed, point, message):
    fuzzed.makepyfile(
        f"""
        from hypothesis import example
        from pytest_trainsafe import Point, trainsafe_fuzz

        @example(point=Point.of({point}))
        @trainsafe_fuzz("program:train", tp=[2, 3], heads=[3, 4])
        def test_it(point): ...
        """
    )

    result = fuzzed.runpytest_inprocess()

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([f"*{message}*"])


def test_a_failure_that_does_not_repeat_is_reported_as_flaky(fuzzed):
    fuzzed.makepyfile(
        """
        from pytest_trainsafe import trainsafe_fuzz
        seen = []

        @trainsafe_fuzz("program:train", tp=[2, 4], layers=[1, 2, 3])
        def test_it(point):
            seen.append(point)
            assert len(seen) % 3
        """
    )

    result = fuzzed.runpytest_inprocess()

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "E *FlakyProgram: trainsafe: program.train is flaky at *, so its failure is no*",
            "E *flaky         run again with the same values, the test passes",
        ]
    )
    result.stdout.no_fnmatch_line("*interaction*")


def test_rules_that_exclude_most_points_fail_the_health_check(fuzzed):
    fuzzed.makepyfile(
        test_health="""
        from hypothesis import HealthCheck, settings
        from pytest_trainsafe import trainsafe_fuzz
        from pytest_trainsafe.sweep import requires

        def only_equal(point, arguments):
            sizes = {arguments[name] for name in "abcd"}
            return None if len(sizes) == 1 else "a, b, c and d must be equal"

        @requires(only_equal)
        def train(ctx, a=1, b=1, c=1, d=1): ...

        SIZES = dict.fromkeys("abcd", range(1, 9))

        @trainsafe_fuzz(train, tp=[2], **SIZES)
        def test_it(point):
            assert point.a == point.d
        """
    )

    result = fuzzed.runpytest_inprocess()

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*FailedHealthCheck: Most points that this test declares are invalid for *train: *",
            "E *a, b, c and d must be equal (*)",
        ]
    )


def test_axes_without_a_valid_point_are_an_error_without_a_traceback(fuzzed):
    fuzzed.makepyfile(
        """
        from pytest_trainsafe import trainsafe_fuzz

        @trainsafe_fuzz("program:train", tp=[3], heads=[4, 8])
        def test_it(point): ...
        """
    )

    result = fuzzed.runpytest_inprocess()

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["*test_it: program.train: none of the 2 points of these axes is valid; give the *"]
    )
    assert "Traceback" not in result.stdout.str()


def test_an_axis_of_the_command_line_that_no_fuzz_test_has_is_an_error(fuzzed):
    fuzzed.makepyfile(test_buggy=BUGGY)

    result = fuzzed.runpytest_inprocess("--trainsafe-sweep", "pp=2")

    result.stdout.fnmatch_lines(["*no collected trainsafe test declares the axis 'pp'*"])


def test_a_rule_of_the_projects_hook_limits_the_drawn_points(fuzzed, ran):
    fuzzed.makepyfile(test_buggy=BUGGY)
    fuzzed.makeconftest(
        """
        def pytest_trainsafe_valid_point(point):
            return "no cp here" if point.size("cp") > 1 else None
        """
    )

    fuzzed.runpytest_inprocess().assert_outcomes(passed=1)

    assert all("cp=1" in line for line in ran())


def test_a_program_that_this_machine_cannot_run_is_skipped_with_the_reason(fuzzed):
    fuzzed.makepyfile(
        """
        from pytest_trainsafe import trainsafe_fuzz
        from pytest_trainsafe.sweep.traits import Traits, give_traits

        def train(ctx, layers=1): ...
        give_traits(train, Traits(unavailable=lambda case: "no such framework here"))

        @trainsafe_fuzz(train, tp=[1, 2], layers=[1, 2, 3])
        def test_it(point):
            raise AssertionError("nothing is run")
        """
    )

    result = fuzzed.runpytest_inprocess("-rs")

    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED * no such framework here"])
