"""Points at which the candidate is the reference test nothing, so they cover no tuple."""

from __future__ import annotations

import itertools

import pytest

from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.sweep import requires
from pytest_trainsafe.sweep.covering import design
from pytest_trainsafe.sweep.marker import read_marker
from pytest_trainsafe.sweep.product import cells
from pytest_trainsafe.sweep.search.space import no_rule


def narrow(point, arguments):
    return "layers=3 needs one rank" if arguments["layers"] == 3 and point.world_size > 1 else None


@requires(narrow)
def train(ctx, layers=1, heads=2):
    raise AssertionError("nothing here is trained")


AXES = {"tp": [1, 2], "dp": [1, 2], "layers": [1, 2, 3], "heads": [2, 4]}


def covered(**words):
    return cells(read_marker([train], AXES), Settings(cover=2), no_rule, **words)


def pairs(points):
    return {pair for point in points for pair in itertools.combinations(point, 2)}


def test_every_pair_is_covered_by_a_point_that_can_fail():
    kept = [cell.case.point for cell in covered()]

    every = cells(read_marker([train], AXES), Settings(), no_rule)
    testing = [c.case.point for c in every if c.invalid is None and c.case.point.world_size > 1]
    assert all(point.world_size > 1 for point in kept)
    assert pairs(kept) == pairs(testing)


def test_pairs_that_occur_only_where_the_candidate_is_the_reference_are_counted_and_named():
    """layers=3 is valid on one rank only, where the candidate is the reference."""
    cover = covered()[0].cover

    assert cover is not None
    assert cover.idle == len(cover.idle_words) == 5
    assert {"tp=1 layers=3", "dp=1 layers=3", "layers=3 heads=2"} < {*cover.idle_words}
    assert "tp=1 dp=1" in cover.idle_words


def test_a_test_that_compares_nothing_with_a_reference_keeps_single_devices():
    kept = covered(compared=False)

    assert any(cell.case.point.world_size == 1 for cell in kept)
    assert kept[0].cover is not None
    assert kept[0].cover.idle == 0


def test_a_sweep_that_is_not_enumerated_does_without_the_reference_too(monkeypatch):
    monkeypatch.setattr(design, "MAX_POINTS", 0)

    kept = covered()

    assert kept
    assert all(cell.case.point.world_size > 1 for cell in kept)


@pytest.mark.parametrize(
    ("takes", "ending"),
    [
        ("reference_trace, candidate_trace", "no point tests 3 other pairs, because the * tp=1 l*"),
        ("candidate_trace", "all 6 valid pairs *"),
    ],
)
def test_the_header_names_what_no_point_tests(project, takes, ending):
    project.makepyfile(
        f"""
        import pytest

        @pytest.mark.trainsafe("program:train", tp=[1, 2], layers=[1, 2, 3])
        def test_it({takes}): ...
        """
    )

    result = project.runpytest_inprocess("--collect-only", "-q", "--trainsafe-cover=pairwise")

    result.stdout.fnmatch_lines([f"trainsafe: * valid points cover *{ending}"])
