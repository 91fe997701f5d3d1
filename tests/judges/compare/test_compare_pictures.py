"""Pictures of the first wrong tensors: values, the borders of shards, and the terms of a sum."""

from __future__ import annotations

import base64
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from pytest_trainsafe.core.finding import Finding, Pattern
from pytest_trainsafe.core.layout import Flat, Part
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.judges.compare.explain import pictures
from pytest_trainsafe.judges.compare.explain.pictures import pictures_of
from pytest_trainsafe.report.panels import Map, Maps, Table
from tests.support.compare.traces import HIDDEN, INNER, TOKENS, Bench, only, parameter

FC1 = TensorId(0, 0, "activation", "fc1", "output")


def values(shown: Map) -> np.ndarray:
    return np.frombuffer(base64.b64decode(shown.values), dtype="<f4").reshape(shown.shape)


def wrong(difference: Map) -> np.ndarray:
    """Where a difference is larger than rounding."""
    return np.abs(values(difference)) > 1e-6


def finding(id: TensorId, pattern: Pattern | None = None) -> Finding:
    return Finding(
        verdict="fail", judge="compare", check="norm", message="", where=id, pattern=pattern
    )


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_a_sharded_tensor_is_shown_with_its_borders_and_where_it_differs(bench: Bench) -> None:
    def spoil(record, at, part):
        return part + 3.0 * (torch.arange(TOKENS)[:, None] == 5) if at["tp"] else part

    rung = bench.rung(Point.of(tp=2), only("activation", "fc1.output", spoil), dtype="float64")
    shown, ranks, pairs = pictures_of(rung, [finding(FC1)])

    assert isinstance(shown, Maps)
    assert shown.anchor == str(FC1)
    candidate, reference, difference = shown.maps
    assert candidate.shape == (TOKENS, INNER)
    half = INNER / 2
    borders = {
        each.label: (each.top, each.left, each.bottom, each.right) for each in candidate.borders
    }
    assert borders == {"rank 0": (0, 0, TOKENS, half), "rank 1": (0, half, TOKENS, INNER)}
    assert np.argwhere(wrong(difference)).tolist() == [[5, n] for n in range(INNER // 2, INNER)]
    assert np.allclose(values(candidate) - values(reference), values(difference), atol=1e-5)
    assert isinstance(ranks, Maps)
    assert [(each.name, each.shape) for each in ranks.maps] == [
        *(("rank 0 · tp=0", (TOKENS, INNER // 2)), ("rank 1 · tp=1", (TOKENS, INNER // 2)))
    ]
    assert isinstance(pairs, Table)
    assert {row[-1] for row in pairs.rows[: INNER // 2]} == {"rank 1"}
    assert float(str(pairs.rows[0][3])) == pytest.approx(3.0)


def test_partial_sums_are_shown_with_their_sum_and_the_reference(bench: Bench) -> None:
    id = parameter("main_grad", "norm.weight", 0)

    def split(record, at, part):
        return part * (0.25 if at["tp"] else 0.75)

    rung = bench.rung(Point.of(tp=2), only("main_grad", "norm.weight", split), dtype="float64")
    pattern = Pattern("partial sum", "the ranks of tp hold partial sums", "tp")
    ranks = pictures_of(rung, [finding(id, pattern)])[1]

    assert isinstance(ranks, Maps)
    shown = {each.name: values(each) for each in ranks.maps}
    assert list(shown) == [*("rank 0 · tp=0", "rank 1 · tp=1", "sum: rank 0 + rank 1", "reference")]
    assert shown["reference"].shape == (1, HIDDEN)
    assert np.allclose(shown["sum: rank 0 + rank 1"], shown["reference"])
    assert not np.allclose(shown["rank 0 · tp=0"], shown["reference"])


def test_each_cell_of_a_large_tensor_is_the_element_of_its_block_that_differs_most(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pictures, "FULL", 4)

    def spoil(record, at, part):
        spoilt = part.clone()
        spoilt[7, 9] += 2.0
        return spoilt

    rung = bench.rung(Point.of(dp=2), only("activation", "fc1.output", spoil), dtype="float64")
    shown = pictures_of(rung, [finding(FC1)])[0]

    assert isinstance(shown, Maps)
    assert shown.maps[2].shape == (4, 4)
    assert np.argwhere(wrong(shown.maps[2])).tolist() == [[7 * 4 // TOKENS, 9 * 4 // INNER]]
    assert "the element of its block that differs most" in shown.note
    assert shown.of == (TOKENS, INNER)
    places = np.frombuffer(base64.b64decode(shown.places), dtype="<i4").reshape(4, 4)
    cell = 7 * 4 // TOKENS, 9 * 4 // INNER
    assert places[cell] == 7 * INNER + 9


def test_ranks_that_hold_the_same_values_are_said_to_be_equal(bench: Bench) -> None:
    def spoil(record, at, part):
        return part + 1.0 if at["tp"] else part

    rung = bench.rung(Point.of(tp=2, dp=2), only("activation", "fc1.output", spoil))
    ranks = pictures_of(rung, [finding(FC1)])[1]

    assert isinstance(ranks, Maps)
    names = [each.name for each in ranks.maps]
    assert names[0].startswith("rank 0 · ")
    assert all("=" in name.partition(" · ")[2] for name in names)


def test_ranges_of_a_flattened_tensor_are_shown_at_their_places_in_it(bench: Bench) -> None:
    rung = bench.rung(Point.of(dp=2, pp=2), dtype="float64")
    id = parameter("main_grad", "fc2.weight", 0)
    whole = torch.arange(HIDDEN * INNER, dtype=torch.float64)
    cut = 3 * INNER + 5  # in the fourth row
    ranges = ((0, cut), (cut, whole.numel() - cut))
    parts = [
        Part(2 * pp + dp, {"dp": dp, "pp": pp}, whole[begin : begin + length],
             (Flat(begin, length, (HIDDEN, INNER), ("dp",)),))
        for pp in range(2) for dp, (begin, length) in enumerate(ranges)
    ]  # fmt: skip
    reference = whole.reshape(HIDDEN, INNER).numpy()
    [panel] = pictures._of_ranks(rung, "fc2.weight", parts, reference, finding(id))

    assert isinstance(panel, Maps)
    first, second, third, _ = panel.maps
    assert first.name == f"rank 0 · dp=0 pp=0, elements 0 to {cut - 1} of {whole.numel()}"
    assert ", equal to rank 0, " in third.name
    assert (values(first) + values(second)).reshape(-1).tolist() == whole.tolist()
    assert [(each.top, each.bottom) for each in first.borders] == [(0, 4)]
    assert [(each.top, each.bottom) for each in second.borders] == [(3, HIDDEN)]
    assert panel.note == (
        "the stages pp=0 and pp=1 each have a copy of this parameter, so its gradient must be "
        "summed over them"
    )


def test_only_the_first_few_wrong_tensors_have_pictures(bench: Bench) -> None:
    rung = bench.rung(Point.of(tp=2), dtype="float64")
    ids = [id for id in rung.reference.ids() if id.kind == "activation"]
    made = pictures_of(rung, [finding(id) for id in (*ids, *ids[:3])])

    shown = [panel.anchor for panel in made if isinstance(panel, Maps) and panel.anchor]
    assert len(ids) > pictures.MOST_TENSORS
    assert shown == [str(id) for id in ids[: pictures.MOST_TENSORS]]


def test_of_replicas_that_differ_the_one_that_is_wrong_is_shown(bench: Bench) -> None:
    def spoil(record, at, part):
        return part + 2.0 * (torch.arange(HIDDEN) == 3) if at["tp"] else part

    id = TensorId(0, 0, "activation", "fc2", "output")
    rung = bench.rung(Point.of(tp=2), only("activation", "fc2.output", spoil), dtype="float64")
    replicas = msgspec.structs.replace(finding(id), check="replicas")
    shown, ranks, pairs = pictures_of(rung, [replicas])

    assert isinstance(shown, Maps)
    assert shown.maps[0].name == "candidate: rank 1"
    assert {n for _, n in np.argwhere(wrong(shown.maps[2])).tolist()} == {3}
    assert isinstance(ranks, Maps)
    assert len(ranks.maps) == 2
    assert isinstance(pairs, Table)
    assert pairs.rows[0][-2:] == ("2", "rank 1")


def test_the_border_of_a_range_is_around_the_cells_that_show_it() -> None:
    rows, wide = 4 * pictures.SMALL, 2
    range_ = Flat(5 * wide, 10 * wide, (rows, wide), ("dp",))
    part = Part(0, {"dp": 0}, torch.ones(10 * wide), (range_,))
    grid = pictures._Grid.of(np.ones((rows, wide)), pictures.SMALL)

    # Rows 5 to 14 are in the cells 1 to 3, of four rows each.
    [border] = pictures._of_range(part, grid)
    assert (border.top, border.bottom) == (1, 4)
