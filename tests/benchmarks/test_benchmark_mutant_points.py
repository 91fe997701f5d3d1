"""Surviving mutants are judged at diverse Points, which their programs accept."""

from __future__ import annotations

from pytest_trainsafe.sweep.validity import invalid


def test_diverse_places_are_distinct_and_cover_the_parallel_axes() -> None:
    from _mutant_points import PLACES
    from bench_mutants import diverse

    chosen = diverse(PLACES, 5)

    assert chosen[0] is PLACES[0]
    assert len({str(place) for place in chosen}) == 5
    assert diverse(PLACES[:2], 5) == list(PLACES[:2])
    assert {"dp", "tp", "cp", "pp"} <= {axis for each in diverse(PLACES, 8) for axis in each.axes}


def test_every_place_has_a_point_that_is_valid_for_its_program() -> None:
    import importlib

    from _mutant_points import PLACES

    from pytest_trainsafe.sweep.program import resolve

    for place in PLACES:
        module = importlib.import_module(f"pytest_trainsafe.reference_models.{place.program}")
        program = resolve(module.train)
        arguments = program.complete(place.arguments)
        assert invalid(place.point, arguments, program.rules, 8) is None, place


def test_lines_run_by_the_candidate_and_by_the_reference_are_distinguished() -> None:
    from _mutant_points import Covered

    found = Covered(candidate={"a.py": {1, 2}}, reference={"a.py": {2, 3}})

    assert [found.runs("a.py", range(n, n + 1)) for n in (1, 2, 3, 4)] == [True, True, False, False]
    assert [n for n in range(5) if found.shares("a.py", range(n, n + 1))] == [2, 3]
    assert [n for n in range(5) if found.only_shares("a.py", range(n, n + 1))] == [3]


def test_some_place_clips_with_a_limit_that_no_norm_reaches_and_some_ties_three_stages() -> None:
    """A bound of the clip factor acts only there; with two stages the last one is the second."""
    from _mutant_points import PLACES

    assert any(place.arguments.get("clip", 0.0) > 100 for place in PLACES)
    assert any(place.axes.get("pp", 1) > 2 and place.arguments.get("tied") for place in PLACES)
