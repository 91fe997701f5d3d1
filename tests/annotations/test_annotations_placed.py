"""Layouts by a function: what it is given, what it may return, and what is refused."""

from __future__ import annotations

import re
from typing import Any

import pytest

from pytest_trainsafe.annotations.declared import Annotations
from pytest_trainsafe.annotations.entries import AnnotationError
from pytest_trainsafe.core.layout import Partial, Slices
from pytest_trainsafe.core.point import Point

POINT = Point.of(tp=2, cp=2)


def declared(result: Any, rank: int = 0, **fields: Any) -> Annotations:
    entry = {"slices": lambda *_: result, **fields}
    found = Annotations.of({"parameters": {"w": entry}, "modules": {"m": {"output": entry}}})
    found.rank = rank
    return found


def test_the_function_gets_the_ranks_place_in_the_mesh_and_the_shape_of_its_part() -> None:
    def function(coordinates: Any, sizes: Any, shape: tuple[int, ...]) -> Any:
        seen.append((dict(coordinates), dict(sizes), shape))
        return (4, 3), [slice(2, 4), slice(None)]

    seen: list[Any] = []
    found = Annotations.of({"parameters": {"w": {"slices": function}}})
    found.rank = 3

    layout = (Slices((((2, 4, 1),), ((0, 3, 1),)), (4, 3), ("tp",)),)
    assert found.parameter("w", POINT, (2, 3)) == (layout, "parameters: w")
    at = POINT.coordinates(3)
    assert seen == [({axis: at[axis] for axis in at}, dict(POINT.sizes), (2, 3))]


def test_a_dimension_may_be_several_slices_with_steps() -> None:
    found = declared(((9,), [[slice(0, 4, 2), slice(None, None), slice(7, 9)]]))
    with pytest.raises(AnnotationError, match=r"slice\(None, None, None\) after row 2"):
        found.parameter("w", POINT, (4,))

    found = declared(((9,), [[slice(0, 4, 2), slice(5, 5), slice(7, None)]]))
    assert found.parameter("w", POINT, (4,)) == (
        (Slices((((0, 4, 2), (7, 9, 1)),), (9,), ("tp",)),),
        "parameters: w",
    )


def test_a_part_without_rows_is_allowed() -> None:
    found = declared(((4,), [slice(0, 0)]))

    assert found.parameter("w", POINT, (0,)) == ((Slices(((),), (4,), ("tp",)),), "parameters: w")


def test_the_function_is_not_called_at_points_that_use_none_of_its_axes() -> None:
    found = declared("nothing valid", axes=["tp"])

    assert found.parameter("w", Point.of(cp=2), (4,)) == ((), "parameters: w")
    assert found.module("m", "output", Point.of(cp=2), (4,)) == ((), "modules: m")


def test_a_sum_over_another_axis_is_added_to_the_slices() -> None:
    entry = {"slices": lambda *_: ((4,), [slice(0, 2)]), "axes": ["tp"], "cp_partial": True}
    found = Annotations.of({"modules": {"m": {"output": entry}}})

    layout = (Slices((((0, 2, 1),),), (4,), ("tp",)), Partial("cp"))
    assert found.module("m", "output", POINT, (2,)) == (layout, "modules: m")


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (None, "it must return the logical shape, and a list with the slices"),
        (((4,), [slice(0, 2)], 1), "it must return the logical shape, and a list with the slices"),
        ((4, [slice(0, 2)]), "the logical shape must be numbers of rows, 0 or more"),
        (((-4,), [slice(0, 2)]), "the logical shape must be numbers of rows, 0 or more"),
        (((4, 4), [slice(0, 2)]), "must have one entry for each of its 1 dimensions"),
        (((4,), [3]), "dimension 0 must be a slice or a list of slices"),
        (((4,), ["ab"]), "dimension 0 must be a slice or a list of slices"),
        (((4,), [slice(0, 4)]), "these slices hold [4] rows, but the rank's tensor has [2]"),
        (((4,), [slice(3, 6)]), "has slice(3, 6, None), but the logical tensor has 4 rows"),
        (((4,), [slice(3, 1, -1)]), "has slice(3, 1, -1), whose step is not 1 or more"),
        (((4,), [[slice(2, 3), slice(0, 1)]]), "slices must increase and not overlap"),
    ],
)
def test_a_result_that_is_no_part_of_the_tensor_is_refused(result: Any, words: str) -> None:
    with pytest.raises(AnnotationError, match=re.escape(words)) as refused:
        declared(result).parameter("w", POINT, (2,))

    assert "annotations: `parameters: w`: the function" in str(refused.value)


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"slices": "my_module:function"}, "A file cannot hold one: pass the annotations as a"),
        ({"slices": 3}, "slices must be a function (coordinates, sizes, shape)"),
        ({"axes": ["tp"]}, "has `axes` but no `slices`"),
        ({"slices": print, "axes": ["ep"]}, "axes must be a list of tp, cp, dp, pp"),
        ({"slices": print, "axes": []}, "axes must be a list of tp, cp, dp, pp"),
        ({"slices": print, "tp_dim": 0}, "has `slices` and tp_dim; remove one of them"),
    ],
)
def test_an_entry_that_is_no_placement_is_refused(entry: Any, words: str) -> None:
    with pytest.raises(AnnotationError, match=re.escape(words)):
        Annotations.of({"parameters": {"w": entry}})


@pytest.mark.parametrize(("rank", "first"), [(0, True), (1, False), (2, True), (3, False)])
def test_one_of_the_ranks_that_sum_the_same_slices_is_the_first(rank: int, first: bool) -> None:
    def half(coordinates: Any, *_: Any) -> Any:
        start = coordinates["tp"] // 2 * 2
        return (4,), [slice(start, start + 2)]

    summed = {"parameters": {"w": {"slices": half, "gradient_partial": ["tp"]}}}
    summed["modules"] = {"m": {"output": {"slices": half, "tp_partial": True}}}
    found = Annotations.of(summed)
    found.rank = rank

    start = rank // 2 * 2
    slices = Slices((((start, start + 2, 1),),), (4,), ("tp",), first=first)
    point = Point.of(tp=4)
    assert found.module("m", "output", point, (2,)) == ((slices, Partial("tp")), "modules: m")
    assert found.parameter("w", point, (2,)) == ((slices,), "parameters: w")
