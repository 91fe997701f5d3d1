"""`pytest.param(..., marks=pytest.mark.trainsafe(...))` marks one parameter set."""

import pytest

HEADER = """
import pytest

small = pytest.mark.trainsafe("program:train", tp=[1, 2])
large = pytest.mark.trainsafe("program:train", tp=[2, 4], dp=[2])
"""


def collected(project, source, *arguments):
    project.makepyfile(test_sets=HEADER + source)
    result = project.runpytest_inprocess("--collect-only", "-q", *arguments)
    return [line.partition("::")[2] for line in result.outlines if "::" in line], result


def test_each_parameter_set_has_the_points_of_its_own_marker(project):
    names, _ = collected(
        project,
        """

@pytest.mark.parametrize("size", [pytest.param(1, marks=small),
                                  pytest.param(2, marks=large, id="two")])
def test_it(size, trainsafe): ...
""",
    )

    assert sorted(names) == [
        "test_it[tp1-1]",
        "test_it[tp2-1]",
        "test_it[tp2-dp2-two]",
        "test_it[tp4-dp2-two]",
    ]


def test_a_test_runs_with_the_point_and_the_values_of_its_parameter_set(project):
    project.makepyfile(
        test_sets=HEADER
        + """
@pytest.mark.parametrize("other", "ab")
@pytest.mark.parametrize(("size", "most"), [pytest.param(1, 2, marks=[small]),
                                            pytest.param(2, 8, marks=large)])
def test_it(size, most, other, trainsafe):
    assert trainsafe.point.size("dp") == size
    assert trainsafe.point.world_size <= most
    assert trainsafe.nodeid.endswith(f"{other}]")
"""
    )

    project.runpytest_inprocess().assert_outcomes(passed=8)


def test_two_parameter_sets_may_have_points_with_the_same_id(project):
    names, _ = collected(
        project,
        """
other = pytest.mark.trainsafe("program:train", tp=[2], args={"layers": 4})

@pytest.mark.parametrize("size", [pytest.param(1, marks=small), pytest.param(2, marks=other)])
def test_it(size, trainsafe): ...
""",
    )

    assert sorted(names) == ["test_it[tp1-1]", "test_it[tp2-1]", "test_it[tp2-2]"]


def test_the_marker_of_a_parameter_set_overrides_the_marker_of_the_test(project):
    names, _ = collected(
        project,
        """
@small
@pytest.mark.parametrize("size", [1, pytest.param(2, marks=large)])
def test_it(size, trainsafe): ...
""",
    )

    assert sorted(names) == [
        "test_it[tp1-1]",
        "test_it[tp2-1]",
        "test_it[tp2-dp2-2]",
        "test_it[tp4-dp2-2]",
    ]


def test_invalid_points_of_a_parameter_set_are_skipped_with_their_reason(project):
    project.makepyfile(
        test_sets=HEADER
        + """
odd = pytest.mark.trainsafe("program:train", tp=[1, 3])

@pytest.mark.parametrize("size", [pytest.param(1, marks=small), pytest.param(2, marks=odd)])
def test_it(size, trainsafe): ...
"""
    )

    result = project.runpytest_inprocess("-rs")

    result.assert_outcomes(passed=3, skipped=1)
    result.stdout.fnmatch_lines(["trainsafe: 4 points, 1 skipped: heads=4 is not *tp=3 (1)*"])


def test_the_command_line_narrows_the_points_of_parameter_sets(project):
    names, _ = collected(
        project,
        """
@pytest.mark.parametrize("size", [pytest.param(1, marks=small), pytest.param(2, marks=large)])
def test_it(size, trainsafe): ...
""",
        "--trainsafe-sweep=tp=2",
    )

    assert sorted(names) == ["test_it[tp2-1]", "test_it[tp2-dp2-2]"]


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        ("[1, pytest.param(2, marks=large)]", "other parameter sets of this test have the trains*"),
        ("[pytest.param(1, marks=[small, large])]", "this parameter set has several trainsafe*"),
        (
            "[pytest.param(1, marks=pytest.mark.trainsafe('program:train', tpp=1))]",
            "unknown axis 'tpp'; did you mean 'pp' or 'tp'[?]",
        ),
    ],
    ids=["one without", "several", "an unknown axis"],
)
def test_mistakes_in_markers_of_parameter_sets_are_collection_errors(project, sets, message):
    _, result = collected(
        project,
        f"""
@pytest.mark.parametrize("size", {sets})
def test_it(size, trainsafe): ...
""",
    )

    result.stdout.fnmatch_lines([f"*test_sets.py::test_it*: {message}"])
    assert result.ret == pytest.ExitCode.INTERRUPTED


def test_other_marks_in_parameter_sets_do_not_import_the_collection_of_sweeps(pytester):
    pytester.makepyfile(
        test_other="""
        import sys, pytest

        never = pytest.mark.skipif(False, reason="never")

        @pytest.mark.parametrize("size", [pytest.param(1, marks=never), 2])
        def test_it(size):
            assert "pytest_trainsafe.sweep.collect" not in sys.modules
        """
    )

    pytester.runpytest_subprocess().assert_outcomes(passed=2)
