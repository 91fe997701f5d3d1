"""What the report of a search claims follows from Points that were run, or from rules."""

from __future__ import annotations

from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.report.interaction import condition, interaction_text
from pytest_trainsafe.sweep import requires
from pytest_trainsafe.sweep.marker import read_marker
from pytest_trainsafe.sweep.search.minimise import minimise
from pytest_trainsafe.sweep.search.space import Space


def coupled(point, arguments):
    """cp=1 is invalid with every change of one axis, and valid if a and b change together."""
    if arguments["locked"] and point.size("cp") == 1 and (arguments["a"], arguments["b"]) != (2, 2):
        return "cp=1 needs a=2 and b=2"
    return None


@requires(coupled)
def train(ctx, locked=False, a=1, b=1, c=1, vocabulary=4):
    raise AssertionError("nothing here is trained")


def search(fails, most=4, args=None, **axes):
    """The search for a bug, a predicate of the Point, from the last declared value of each axis."""
    space = Space(read_marker([train], {**axes, "args": args or {}}), Settings(max_world_size=most))
    start = space.point({axis: values[-1] for axis, values in axes.items()})
    assert space.is_valid(start)
    assert fails(start) is True

    def run(point):
        result = fails(point)
        return result if isinstance(result, str) else "fails" if result else "passes"

    return minimise(space, start, run)


def test_no_axis_is_needed_if_the_point_without_it_fails_for_another_reason():
    """Without tp the only Point is at dp=2, and there the test fails differently."""
    found = search(lambda p: "differs" if p.size("dp") > 1 else True, dp=[2, 1], tp=[1, 2])

    assert found.needs == ()
    assert {e.axis: e.differs for e in found.effects} == {"dp": (2,), "tp": (1,)}


def test_an_axis_is_needed_if_the_test_passes_at_a_point_without_it():
    found = search(lambda p: p.size("tp") > 1, dp=[1, 2], tp=[1, 2])

    assert interaction_text(found) == "needs tp >= 2; independent of dp"


def test_an_axis_without_which_only_the_reference_is_left_is_not_reported_as_needed():
    found = search(lambda p: True, tp=[1, 2])

    assert found.needs == ()
    assert interaction_text(found).endswith(
        "not varied alone, because without it the candidate is the reference: tp"
    )


def test_an_axis_is_implied_only_if_the_rules_allow_no_other_value_at_all():
    def needs_c(*others):
        values = {"cp": [1, 2], "a": others, "b": others, "c": [1, 2]}
        return interaction_text(search(lambda p: p.c == 2, args={"locked": True}, **values))

    assert needs_c(1).startswith("needs c >= 2 (valid only with cp >= 2)")
    assert "valid only with" not in needs_c(2, 1)


def test_no_axis_is_implied_if_the_rules_would_have_to_be_asked_too_often(monkeypatch):
    monkeypatch.setattr("pytest_trainsafe.sweep.search.space.MAX_ASKED", 0)
    found = search(lambda p: p.c == 2, args={"locked": True}, cp=[1, 2], a=[1], b=[1], c=[1, 2])

    assert found.implied == ()


def test_a_range_is_claimed_only_over_values_that_were_tried():
    """The test passes with a vocabulary of 12, so the bug does not occur at all sizes from 5."""
    found = search(lambda p: p.vocabulary in (5, 11), most=2, tp=[2], vocabulary=[4, 11, 12, 5])

    (vocabulary,) = found.needs
    assert vocabulary.fails == (5, 11)
    assert vocabulary.passes == (4, 12)
    assert condition(vocabulary) == "vocabulary=5 or 11"


def test_a_range_over_values_that_all_fail_is_claimed():
    found = search(lambda p: p.vocabulary >= 5, most=2, tp=[2], vocabulary=[4, 5, 12, 11])

    assert [condition(effect) for effect in found.needs] == ["vocabulary >= 5"]


def test_values_that_are_invalid_at_the_smallest_point_are_in_no_range():
    """With cp=2, a tp of 4 has more ranks than are allowed."""
    found = search(lambda p: p.size("tp") > 1 and p.size("cp") > 1, most=4, tp=[1, 4, 2], cp=[1, 2])

    tp = next(effect for effect in found.needs if effect.axis == "tp")
    assert tp.untried == (4,)
    assert condition(tp) == "tp=2 (passes with 1)"
