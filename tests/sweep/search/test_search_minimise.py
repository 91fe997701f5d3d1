"""The smallest failing Point, and which axes a failure needs."""

from __future__ import annotations

import pytest

from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.report.interaction import condition, interaction_text
from pytest_trainsafe.sweep import divides, requires
from pytest_trainsafe.sweep.marker import read_marker
from pytest_trainsafe.sweep.search import minimise as module
from pytest_trainsafe.sweep.search.interaction import AxisEffect
from pytest_trainsafe.sweep.search.minimise import minimise
from pytest_trainsafe.sweep.search.space import Space

AXES = {
    "tp": [1, 2, 3, 4],
    "cp": [1, 2, 3, 4],
    "dp": [1, 2, 4],
    "sp": [False, True],
    "layers": [1, 2, 4],
    "dtype": ["float64", "bfloat16"],
    "schedule": ["gpipe", "1f1b"],
}
START: dict[str, int | str] = {
    "tp": 2,
    "cp": 2,
    "dp": 2,
    "layers": 4,
    "dtype": "bfloat16",
    "schedule": "1f1b",
}


@requires(divides("heads", "tp"))
def train(ctx, heads=12, layers=2, schedule="gpipe"):
    raise AssertionError("nothing here is trained")


def search(fails, start=None, **axes):
    """The result of a search for a bug that is a predicate of the Point."""
    space = Space(read_marker([train], {**AXES, **axes}), Settings(max_world_size=8))
    ran = []

    def run(point):
        ran.append(point)
        assert space.is_valid(point)
        result = fails(point)
        return result if isinstance(result, str) else "fails" if result else "passes"

    point = space.point({**START, "sp": False, **(start or {})})
    assert fails(point) is True
    found = minimise(space, point, run)
    assert len(ran) == len(set(ran)) < module.MAX_TRIED
    return found


def smallest(found):
    return {axis: value for axis, value in found.point if value not in (1, False)}


@pytest.mark.parametrize(
    ("fails", "start", "point", "text"),
    [
        (
            lambda p: p.size("tp") > 1 and p.size("cp") > 1,
            {},
            {"tp": 2, "cp": 2},
            "needs tp >= 2 and cp >= 2; independent of dp, sp, layers, dtype, schedule",
        ),
        (
            lambda p: p.size("tp") > 1 and p.size("cp") > 1 and not p.sp,
            {},
            {"tp": 2, "cp": 2},
            "needs tp >= 2 and cp >= 2 and sp=False; independent of dp, layers, dtype, schedule",
        ),
        (
            lambda p: bool(p.sp),
            {"sp": True},
            {"tp": 2, "sp": True},
            "needs sp=True (valid only with tp >= 2); independent of cp, dp, layers, dtype, sched",
        ),
        (
            lambda p: p.layers in (2, 4) and p.dtype == "bfloat16",
            {},
            {"tp": 1, "cp": 1, "dp": 2, "layers": 2, "dtype": "bfloat16"},
            "needs layers >= 2 and dtype=bfloat16",
        ),
        (
            lambda p: p.schedule == "1f1b" and p.layers == 2,
            {"layers": 2},
            {"layers": 2, "schedule": "1f1b"},
            "needs layers=2 and schedule=1f1b",
        ),
        (
            lambda p: True,
            {},
            {},
            "needs none of the axes that could be varied; independent of",
        ),
    ],
)
def test_the_smallest_failing_point_and_the_axes_that_it_needs_are_found(fails, start, point, text):
    found = search(fails, start)

    assert interaction_text(found).startswith(text)
    others = {"dtype": "float64", "schedule": "gpipe"}
    wanted = {axis: value for axis, value in {**others, **point}.items() if value != 1}
    if "tp" in point and "cp" in point:
        assert smallest(found) == wanted
    else:  # any axis of two ranks is as small as another
        mesh = {"tp", "cp", "dp"} - {axis for axis, value in point.items() if value != 1}
        left = {a: v for a, v in smallest(found).items() if a not in mesh}
        assert left == {a: v for a, v in wanted.items() if a not in mesh}
        assert found.point.world_size == 2
    assert found.complete


def test_an_axis_that_a_rule_couples_to_a_needed_axis_is_not_reported_as_needed():
    """heads=3 is needed only because tp is 3."""
    found = search(
        lambda p: p.size("tp") > 1, {"tp": 3, "cp": 1, "heads": 3}, heads=[2, 3, 4], dp=[1, 2]
    )

    assert [effect.axis for effect in found.needs] == ["tp"]
    assert dict(found.point)["tp"] == 2


def test_a_different_failure_does_not_count_as_the_same_failure():
    def fails(point):
        if point.layers == 1:
            return "differs"
        return point.size("tp") > 1

    found = search(fails)

    effects = {effect.axis: effect for effect in found.effects}
    assert dict(found.point)["layers"] == 2
    assert effects["layers"].differs == (1,)
    assert not effects["layers"].needed
    assert not effects["layers"].independent
    assert [effect.axis for effect in found.needs] == ["tp"]


def test_a_search_that_reaches_its_limit_says_so(monkeypatch):
    monkeypatch.setattr(module, "MAX_TRIED", 5)
    found = search(lambda p: p.size("tp") > 1 and p.layers > 2)

    assert not found.complete
    assert found.tried == 5


@pytest.mark.parametrize(
    ("effect", "text"),
    [
        (AxisEffect("layers", 1, (1,), (2,)), "layers <= 1"),
        (AxisEffect("layers", 2, (2, 5), (1, 3)), "layers=2 or 5"),
        (AxisEffect("tp", 2, (2,), (1,), untried=(4,)), "tp=2 (passes with 1)"),
        (AxisEffect("tp", 2, (2, 4), (1,), differs=(3,)), "tp=2 or 4 (passes with 1)"),
        (AxisEffect("layers", 2, (2,), (1, 3)), "layers=2"),
        (
            AxisEffect("recompute", "full", ("full", "selective"), (False,)),
            "recompute=full or selective",
        ),
        (AxisEffect("sp", False, (False,), (True,)), "sp=False"),
    ],
)
def test_a_condition_names_the_values_that_fail(effect, text):
    assert condition(effect) == text
