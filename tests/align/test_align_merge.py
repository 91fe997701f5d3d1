"""Each check of merge fires on its planted fault, and names rank, rows and annotation."""

from __future__ import annotations

import math

import pytest
import torch

from pytest_trainsafe.align.merge import Merged, Part, merge
from pytest_trainsafe.core.finding import Finding
from pytest_trainsafe.core.indices import extract
from pytest_trainsafe.core.layout import Layout, Partial, Shard, Slices, ZigZag
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.core.tensor_id import TensorId

POINT = Point.of(tp=2, cp=2)
FULL = torch.arange(24.0).view(8, 3)
SOURCE = "modules: linear_qkv"


def parts_of(layout: Layout, full: torch.Tensor = FULL, point: Point = POINT) -> list[Part]:
    where = [point.coordinates(rank) for rank in range(point.world_size)]
    cut = [extract(full, layout, c, point.sizes).clone() for c in where]
    return [Part(r, c, t, layout, SOURCE) for r, (c, t) in enumerate(zip(where, cut, strict=True))]


def only(merged: Merged) -> Finding:
    assert len(merged.findings) == 1, merged.findings
    return merged.findings[0]


def expect(finding: Finding, check: str, *words: str) -> None:
    assert (finding.verdict, finding.judge, finding.check) == ("fail", "align", check)
    for word in (*words, SOURCE):
        assert word in finding.message


def test_a_differing_replica_is_reported_with_its_ranks_and_first_row() -> None:
    parts = parts_of((Shard(0, "cp"),))
    parts[3].tensor[1, 2] += 0.5
    parts[3].tensor[3, 0] -= 0.25
    merged = merge(parts, POINT.sizes)
    expect(
        only(merged), "replicas", "over tp", "rank 3 from rank 2", "2 of 12 elements",
        "row 5, index [5, 2]", "17.5 against 17", "largest difference 0.5",
    )  # fmt: skip
    assert merged.tensor is not None
    assert torch.equal(merged.tensor, FULL.double())  # the first replica is used
    assert merged.parts == parts


@pytest.mark.parametrize("last", [0.0, 0.1])
def test_the_values_shown_of_replicas_differ_in_print(last: float) -> None:
    """Two float64 values may agree in the nine digits that are usually shown."""
    values = torch.tensor([0.450390625, 1.0, 0.5], dtype=torch.float64)
    other = values + torch.tensor([1e-13, 0.0, last], dtype=torch.float64)
    point = Point.of(tp=2)
    parts = [Part(r, point.coordinates(r), t, (), SOURCE) for r, t in enumerate((values, other))]
    shown = "at index [2] (0.6 against 0.5)" if last else "(0.4503906250001 against 0.450390625)"
    expect(only(merge(parts, point.sizes)), "replicas", "the first at row 0, index [0]", shown)


def test_replicas_with_equal_nans_are_equal_and_with_different_signs_of_zero_are_not() -> None:
    tensors = torch.tensor([float("nan"), 0.0]), torch.tensor([float("nan"), -0.0])
    point = Point.of(tp=2)
    same = [Part(r, point.coordinates(r), tensors[0], (), SOURCE) for r in (0, 1)]
    signs = [Part(r, point.coordinates(r), t, (), SOURCE) for r, t in enumerate(tensors)]
    assert merge(same, point.sizes).findings == []
    expect(only(merge(signs, point.sizes)), "replicas", "1 of 2", "only the sign of zero")


def test_replicas_with_different_nan_payloads_are_equal() -> None:
    bits = torch.tensor([0x7FC00000, 0x7FC00001], dtype=torch.int32)
    point = Point.of(dp=2)
    parts = [Part(r, point.coordinates(r), bits[r].view(torch.float32)) for r in (0, 1)]
    assert merge(parts, point.sizes).findings == []


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.int8, torch.float8_e4m3fn, torch.complex64, torch.float16]
)
def test_replicas_of_every_dtype_are_compared(dtype: torch.dtype) -> None:
    point = Point.of(tp=2)
    parts = [Part(r, point.coordinates(r), torch.tensor([r]).to(dtype), ()) for r in (0, 1)]
    assert only(merge(parts, point.sizes)).check == "replicas"


def test_replicas_of_a_partial_sum_term_are_compared() -> None:
    parts = parts_of((Partial("cp"),))
    parts[1].tensor[0, 0] = -9
    expect(only(merge(parts, POINT.sizes)), "replicas", "over tp", "rank 1 from rank 0", "row 0")


def test_an_absent_replica_is_a_missing_finding() -> None:
    expect(
        only(merge(parts_of((Shard(0, "cp"),))[1:], POINT.sizes)),
        "missing", "rank 0", "replica", "held by ranks 1, 2, 3",
    )  # fmt: skip


def test_an_absent_partial_sum_term_is_a_missing_finding() -> None:
    found = only(merge(parts_of((Partial("cp"), Partial("tp")))[:3], POINT.sizes))
    expect(found, "missing", "rank 3", "a term of the sum over cp, tp")


def test_an_absent_part_is_a_hole_finding_with_its_rows_and_a_mask_of_its_elements() -> None:
    layout = (ZigZag(0, "cp"), Shard(0, "tp"))
    merged = merge(parts_of(layout)[:3], POINT.sizes)
    expect(only(merged), "hole", "rank 3", "rows 4-5 of 8 in dimension 0")
    assert merged.missing is not None
    assert merged.whole is None
    assert merged.missing.any(dim=1).tolist() == [False] * 4 + [True] * 2 + [False] * 2


def test_a_part_absent_on_all_its_ranks_is_one_hole_finding() -> None:
    found = only(merge(parts_of((Shard(0, "cp"),))[:2], POINT.sizes, shape=(8, 3)))
    expect(found, "hole", "ranks 2, 3", "rows 4-7")


def test_whole_tensors_declared_as_shards_are_an_overlap_finding() -> None:
    parts = [Part(p.rank, p.coordinates, FULL, (Shard(0, "tp"),), SOURCE) for p in parts_of(())]
    found = only(merge(parts, POINT.sizes, shape=FULL.shape))
    expect(found, "overlap", "ranks 0, 1, 2, 3", "hold 8 of the 8 rows of dimension 0", "gives 4")


def test_shards_declared_as_whole_tensors_are_a_hole_finding() -> None:
    parts = [
        Part(p.rank, p.coordinates, p.tensor, (), SOURCE) for p in parts_of((Shard(1, "tp"),))
        if p.coordinates["tp"] == 0
    ]  # fmt: skip
    found = merge(parts, POINT.sizes, shape=FULL.shape).findings[0]
    expect(
        found, "hole", "ranks 0, 2", "hold 2 of the 3 rows of dimension 1", "gives 3", "whole on"
    )


def held(lengths: tuple[int, int], layout: Layout) -> list[Part]:
    """Parts of a vector that two tp ranks hold, of these lengths."""
    point = Point.of(tp=2)
    return [
        Part(rank, point.coordinates(rank), torch.arange(float(n)), layout, SOURCE)
        for rank, n in enumerate(lengths)
    ]


def test_parts_with_more_rows_than_the_reference_may_be_padded() -> None:
    sizes = Point.of(tp=2).sizes
    whole = only(merge(held((12, 12), ()), sizes, shape=(11,)))
    expect(whole, "overlap", "ranks 0, 1 hold 12 rows of dimension 0, but the reference has 11")
    assert "if this is padding, pad alike at every Point" in whole.message
    assert "of the 11 rows" not in whole.message
    cut = only(merge(held((6, 6), (Shard(0, "tp"),)), sizes, shape=(11,)))
    expect(cut, "overlap", "all ranks together hold 12 rows of dimension 0, but the reference has")
    assert "if this is padding, pad alike at every Point" in cut.message


def test_parts_of_uneven_shards_are_no_padding() -> None:
    sizes = Point.of(tp=2).sizes
    assert merge(held((6, 5), (Shard(0, "tp"),)), sizes, shape=(11,)).findings == []
    twice = only(merge(held((11, 11), (Shard(0, "tp"),)), sizes, shape=(11,)))
    expect(twice, "overlap", "the parts hold rows twice: ranks 0, 1 hold 11 of the 11 rows")
    assert "padding" not in twice.message


def test_overlapping_and_missing_elements_of_rectangles_are_counted() -> None:
    point = Point.of(dp=2)

    def merged(second: int) -> Merged:
        layouts = [(Slices.rectangle((start,), (2,), (5,), ("dp",)),) for start in (0, second)]
        where = [point.coordinates(rank) for rank in (0, 1)]
        return merge(
            [Part(r, where[r], torch.ones(2), layouts[r], SOURCE) for r in (0, 1)], point.sizes
        )

    first, second = merged(1).findings
    expect(first, "overlap", "1 of 5 elements", "first at (1,)")
    expect(second, "hole", "2 of 5 elements", "first at (3,)", "held by ranks 0, 1")
    expect(only(merged(3)), "hole", "1 of 5 elements", "first at (2,)")
    missing = merged(3).missing
    assert missing is not None
    assert missing.tolist() == [False, False, True, False, False]


def test_ranks_that_declare_different_layouts_are_not_merged() -> None:
    parts = parts_of(())
    parts[2] = Part(2, parts[2].coordinates, FULL, (Shard(0, "tp"),), "parameters: other")
    merged = merge(parts, POINT.sizes)
    expect(only(merged), "layout", "rank 2", "parameters: other", "dimension 0 cut over tp")
    assert merged.tensor is None


def test_parts_of_different_dtypes_are_reported_and_merged() -> None:
    parts = parts_of((Shard(0, "cp"), Shard(1, "tp")))
    parts[1] = Part(1, parts[1].coordinates, parts[1].tensor.double(), parts[1].layout, SOURCE)
    merged = merge(parts, POINT.sizes)
    expect(only(merged), "layout", "rank 1", "torch.float64", "torch.float32")
    assert merged.tensor is not None


@pytest.mark.parametrize(
    ("tensors", "layout", "words"),
    [
        (
            (torch.ones(3), torch.ones(5)),
            (Shard(0, "tp"),),
            "shape [3], but its layout gives it a part of shape [4]",
        ),
        ((torch.ones(3), torch.ones(5)), (), "3 rows on one rank, but 5 on the rank at "),
        (
            (torch.ones(2), torch.ones(2)),
            (Shard(0, "tp", (3, 2)),),
            "but its layout gives it a part of shape",
        ),
        ((torch.ones(2), torch.ones(2)), (Shard(1, "tp"),), "does not fit a tensor of 1"),
    ],
)
def test_a_part_whose_shape_does_not_fit_its_layout_is_a_layout_finding(
    tensors: tuple[torch.Tensor, torch.Tensor], layout: Layout, words: str
) -> None:
    point = Point.of(tp=2)
    parts = [Part(r, point.coordinates(r), t, layout, SOURCE) for r, t in enumerate(tensors)]
    merged = merge(parts, point.sizes)
    expect(merged.findings[-1], "layout", words)
    assert merged.tensor is None


def test_a_tensor_with_another_number_of_dimensions_than_the_reference_is_reported() -> None:
    found = merge(parts_of(()), POINT.sizes, shape=(8, 3, 1)).findings[0]
    expect(found, "layout", "2 dimensions", "[8, 3, 1]")


def test_parts_held_by_one_pipeline_stage_alone_are_complete() -> None:
    point = Point.of(tp=2, pp=2)
    parts = [p for p in parts_of((Shard(0, "tp"),), point=point) if p.coordinates["pp"] == 1]
    assert merge(parts, point.sizes).findings == []
    expect(only(merge(parts[:1], point.sizes)), "hole", "rank 3")


def test_a_micro_batch_held_by_one_dp_rank_is_complete_if_dp_is_a_free_axis() -> None:
    point = Point.of(tp=2, dp=2)
    parts = [p for p in parts_of((Shard(0, "tp"),), point=point) if p.coordinates["dp"] == 1]
    assert merge(parts, point.sizes, free_axes=("pp", "dp")).findings == []
    assert [f.check for f in merge(parts, point.sizes).findings] == ["missing"]


def test_partial_sums_are_added_in_float64_and_integers_without_overflow() -> None:
    point = Point.of(tp=2)
    for dtype, terms, total in (
        (torch.bfloat16, (256.0, 1.0), 257.0),
        (torch.int8, (127, 127), 254),
    ):
        tensors = [torch.tensor([term], dtype=dtype) for term in terms]
        parts = [Part(r, point.coordinates(r), tensors[r], (Partial("tp"),)) for r in (0, 1)]
        merged = merge(parts, point.sizes).tensor
        assert merged is not None
        assert merged.item() == total


def test_partial_means_are_divided_by_the_number_of_terms() -> None:
    point = Point.of(cp=2)
    parts = [
        Part(r, point.coordinates(r), torch.tensor(1.0 + r), (Partial("cp", "avg"),))
        for r in (0, 1)
    ]
    merged = merge(parts, point.sizes).tensor
    assert merged is not None
    assert math.isclose(merged.item(), 1.5)


def test_a_loss_has_no_term_on_dp_ranks_that_did_not_run_its_micro_batch() -> None:
    point = Point.of(dp=2)
    layout = (Partial("dp", "avg"),)
    part = Part(1, point.coordinates(1), torch.tensor(3.0), layout, SOURCE)
    for kind, checks in (("loss", []), ("param_grad", ["missing"])):
        where = TensorId(0, 1, kind, "", kind)  # type: ignore[arg-type]
        merged = merge([part], point.sizes, free_axes=("pp", "dp"), where=where)
        assert [finding.check for finding in merged.findings] == checks
        assert merged.tensor is not None
        assert merged.tensor.item() == 1.5


def test_findings_have_the_tensor_id_passed_as_where() -> None:
    where = TensorId(0, 1, "activation", "layer", "output")
    assert only(merge(parts_of(())[1:], POINT.sizes, where=where)).where == where


@pytest.mark.parametrize(("ranks", "axes"), [((2, 3), "cp"), ((1, 3), "tp"), ((3,), "tp and cp")])
def test_a_replicas_finding_names_only_the_axes_along_which_replicas_differ(
    ranks: tuple[int, ...], axes: str
) -> None:
    parts = parts_of(())
    for rank in ranks:
        parts[rank].tensor[0, 0] = -1
    expect(only(merge(parts, POINT.sizes)), "replicas", f"over {axes} differ")


def test_rows_of_an_absent_uneven_shard_are_computed_from_the_reference_shape() -> None:
    point = Point.of(tp=2)
    parts = parts_of((Shard(0, "tp"),), torch.arange(5.0), point)[1:]
    merged = merge(parts, point.sizes, shape=(5,))
    expect(only(merged), "hole", "rank 0", "rows 0-2 of 5 in dimension 0")
    assert merged.tensor is not None
    assert merged.tensor[3:].tolist() == [3, 4]
