"""One test per Point: ids, skips and counts."""

import pytest

pytestmark = pytest.mark.usefixtures("without_hypothesis")

EVERY = ["tp1-cp1", "tp1-cp2", "tp2-cp1", "tp2-cp2", "layers2", "layers8"]


def collected(result):
    return [line.partition("[")[2].rstrip("]") for line in result.outlines if "::" in line]


def test_a_marked_test_is_collected_once_per_point_with_readable_ids(swept):
    result = swept.runpytest_inprocess("--collect-only", "-q")

    assert collected(result) == EVERY
    result.stdout.fnmatch_lines(["trainsafe: 6 points, network *"])


def test_points_that_an_error_of_the_collection_keeps_from_running_are_not_counted(swept):
    swept.makepyfile(
        test_bad="""
        import pytest

        @pytest.mark.trainsafe("program:train", tpp=[1])
        def test_it():
            pass
        """
    )

    stopped = swept.runpytest_inprocess()
    goes_on = swept.runpytest_inprocess("--collect-only", "--continue-on-collection-errors")

    stopped.assert_outcomes(errors=1)
    stopped.stdout.no_fnmatch_line("trainsafe: * points*")
    goes_on.stdout.fnmatch_lines(["trainsafe: 6 points, network *"])


def test_every_point_runs(swept):
    swept.runpytest_inprocess().assert_outcomes(passed=6)


def test_a_sweep_multiplies_with_the_users_own_parameters(project):
    project.makepyfile(
        """
        import pytest

        @pytest.mark.trainsafe("program:train", tp=[1, 2])
        @pytest.mark.parametrize("word", ["a", "b"])
        def test_both(word, trainsafe):
            assert word in "ab"
        """
    )

    result = project.runpytest_inprocess("--collect-only", "-q")

    assert collected(result) == ["tp1-a", "tp1-b", "tp2-a", "tp2-b"]


def test_invalid_points_are_skipped_with_their_reason_and_counted(project):
    project.makepyfile(
        """
        import pytest

        @pytest.mark.trainsafe("program:train", tp=[1, 2, 3], sp=[False, True])
        def test_sp(trainsafe):
            assert trainsafe.point.size("tp") in (1, 2)
        """
    )

    result = project.runpytest_inprocess("-rs")

    result.assert_outcomes(passed=3, skipped=3)
    result.stdout.fnmatch_lines(
        [
            "trainsafe: 6 points, 3 skipped: sp needs tp > 1 (1), heads=4 is not divisible * (2)*",
            "SKIPPED * tp=1 sp=True: sp needs tp > 1",
        ]
    )


def test_points_above_the_largest_world_size_are_skipped(swept):
    result = swept.runpytest_inprocess("-rs", "--trainsafe-max-world-size", "2")

    result.assert_outcomes(passed=5, skipped=1)
    result.stdout.fnmatch_lines(["*world size 4 (tp=2[*]cp=2) is above --trainsafe-max-world*"])


def test_a_project_adds_rules_with_a_hook(swept):
    swept.makeconftest(
        """
        def pytest_trainsafe_valid_point(point, arguments):
            if point.size("cp") > 1:
                return f"no cp with {arguments['heads']} heads"
        """
    )

    result = swept.runpytest_inprocess("-rs")

    result.assert_outcomes(passed=4, skipped=2)
    result.stdout.fnmatch_lines(["SKIPPED * tp=1 cp=2: no cp with 4 heads"])


def test_the_marker_of_a_class_applies_to_tests_without_a_marker_of_their_own(project):
    project.makepyfile(
        """
        import pytest

        @pytest.mark.trainsafe("program:train", tp=[1, 2])
        class TestBoth:
            def test_one(self, trainsafe):
                assert trainsafe.nodeid.endswith(f"test_one[tp{trainsafe.point.size('tp')}]")

            @pytest.mark.trainsafe("program:train", tp=[4])
            def test_own(self, trainsafe):
                assert trainsafe.point.size("tp") == 4
        """
    )

    project.runpytest_inprocess().assert_outcomes(passed=3)


def test_the_marker_is_listed_with_its_signature(pytester):
    result = pytester.runpytest_inprocess("--markers")

    result.stdout.fnmatch_lines(["@pytest.mark.trainsafe(program, [*][*]axes): compare the *"])


def test_a_suite_without_trainsafe_tests_has_no_output_of_the_plugin(pytester):
    pytester.makepyfile(test_other="def test_it(): pass")

    result = pytester.runpytest_inprocess()

    result.assert_outcomes(passed=1)
    known = ("plugins:", "rootdir:")  # pytest's list of plugins, this test's own directory
    assert [x for x in result.outlines if "trainsafe" in x and not x.startswith(known)] == []
