"""`--trainsafe-cover`: few Points of each test, counted in the header."""

from __future__ import annotations

import pytest


@pytest.fixture
def four_axes(project):
    """A test over 3 * 3 * 2 * 2 Points, of which rules exclude some, and one over two Points."""
    project.makepyfile(
        test_four="""
        import pytest

        @pytest.mark.trainsafe(
            "program:train", tp=[1, 2, 4], cp=[1, 2, 4], sp=[False, True], layers=[2, 8]
        )
        def test_four(trainsafe): ...

        @pytest.mark.trainsafe("program:train", tp=[1, 2])
        def test_one(trainsafe): ...
        """
    )
    return project


def collected(result, test):
    return {line.partition("[")[2].rstrip("]") for line in result.outlines if f"::{test}[" in line}


def test_pairwise_runs_few_valid_points_and_the_header_says_how_many(four_axes):
    result = four_axes.runpytest_inprocess("--collect-only", "-q", "--trainsafe-cover=pairwise")

    chosen = collected(result, "test_four")
    assert len(chosen) == 8  # as many as pairs of tp and cp
    assert not any("tp4-cp4" in each or ("tp1" in each and "-sp" in each) for each in chosen)
    counted = f"{len(chosen)} of 26 valid points cover all 35 valid pairs of axis values"
    result.stdout.fnmatch_lines([f"trainsafe: {len(chosen) + 2} points ({counted}), network *"])


def test_a_test_with_fewer_axes_than_the_strength_keeps_its_whole_sweep(four_axes):
    result = four_axes.runpytest_inprocess("--collect-only", "-q", "--trainsafe-cover=3-wise")

    assert collected(result, "test_one") == {"tp1", "tp2"}
    assert len(collected(result, "test_four")) > 9
    result.stdout.fnmatch_lines(["*valid points cover all * valid triples of axis values*"])


def test_the_design_covers_the_sweep_of_the_command_line(four_axes):
    sweep = ("--trainsafe-sweep", "cp=1,2", "layers=1,2,3")
    result = four_axes.runpytest_inprocess(
        "--collect-only", "-q", "-k", "four", "--trainsafe-cover=pairwise", *sweep
    )

    chosen = collected(result, "test_four")
    values = {tuple(each.split("-")) for each in chosen}
    assert {each[1] for each in values} == {"cp1", "cp2"}
    assert {each[3] for each in values} == {"layers1", "layers2", "layers3"}


def test_a_sweep_too_large_for_a_product_has_a_covering_design(project):
    project.makepyfile(
        test_large="""
        import pytest

        sizes = {axis: [1, 2, 4] for axis in ("tp", "cp", "dp", "pp", "vpp", "ep", "microbatches")}

        @pytest.mark.trainsafe("program:train", **sizes, layers=list(range(1, 8)))
        def test_large(trainsafe): ...
        """
    )

    whole = project.runpytest_inprocess("--collect-only", "-q")
    cover = project.runpytest_inprocess("--collect-only", "-q", "--trainsafe-cover=pairwise")

    whole.stdout.fnmatch_lines(["*the axes make 15309 points*"])
    assert len(collected(cover, "test_large")) < 60
    cover.stdout.fnmatch_lines(["trainsafe: * of 15309 points cover all * valid pairs *"])


def test_a_strength_above_the_number_of_axes_is_an_error(four_axes):
    result = four_axes.runpytest_inprocess("--trainsafe-cover=3-wise", "test_four.py::test_one")

    result.assert_outcomes(errors=1)
    message = (
        "*--trainsafe-cover 3-wise: no collected trainsafe test has 3 axes with several values "
        "(axes with several values: tp); use a smaller strength*"
    )
    result.stdout.fnmatch_lines([message])


def test_an_unknown_strength_is_an_error_that_lists_the_strengths(four_axes):
    result = four_axes.runpytest_inprocess("--trainsafe-cover=pairs")

    message = "*--trainsafe-cover takes one of off, pairwise, 2-wise, 3-wise, *, not 'pairs'*"
    result.stderr.fnmatch_lines([message])


def test_a_strength_above_the_number_of_axes_is_no_error_in_the_ini_file(four_axes, write_ini):
    write_ini("trainsafe_cover = 3-wise")

    result = four_axes.runpytest_inprocess("test_four.py::test_one")

    result.assert_outcomes(passed=2)
