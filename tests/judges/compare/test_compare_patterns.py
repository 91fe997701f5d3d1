"""Each pattern explains its own faults, in every dtype, and no others; none explains garbage."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from syrupy.assertion import SnapshotAssertion

from pytest_trainsafe.align.merge import Part
from pytest_trainsafe.core.layout import Flat, Shard
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.core.rungs.table import rung_named
from pytest_trainsafe.judges.compare.patterns.catalogue import PATTERNS, explain
from pytest_trainsafe.judges.compare.patterns.regions import confined
from pytest_trainsafe.judges.compare.patterns.rows import same_row
from pytest_trainsafe.judges.compare.patterns.scale import scaled
from pytest_trainsafe.judges.compare.patterns.wrong_tensor import WrongTensor
from tests.support.compare.faults import (
    FAULTS,
    ROWS_OVER_TP,
    drawn,
    like,
    planted,
    reference_tensor,
    with_rows,
    wrong_tensor,
)

DTYPES = ("float64", "float32", "bfloat16")

#: Patterns further down the list that also explain a fault.
ALSO = {
    "zero": {"zero_in_part"},
    "no update": {"zero_in_part"},
    "another shard": {"permuted"},
    "two shards exchanged": {"permuted", "confined"},
    "rows copied": {"confined"},
    "rolled by two": {"permuted"},
    "part of tp rank 2 zero": {"confined"},
    "rows zero": {"confined"},
    "one row for several": {"confined"},
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_explained_first_by_its_own_pattern_and_axis(name: str, dtype: str) -> None:
    wrong = planted(name, dtype)
    found = {pattern.__name__: match for pattern in PATTERNS if (match := pattern(wrong))}
    names = [(match.name, match.axis) for match in found.values()]
    expected = FAULTS[name].pattern, FAULTS[name].axis
    assert names[:1] == ([expected] if expected[0] else []), found
    assert set(list(found)[1:]) <= ALSO.get(name, set()), found
    assert explain(wrong) == next(iter(found.values()), None)


@pytest.mark.parametrize("name", FAULTS)
def test_the_texts_on_each_fault_match_the_snapshot(name: str, snapshot: SnapshotAssertion) -> None:
    found = explain(planted(name, "float32"))
    said = None
    if found is not None:
        said = {"text": found.text, "cause": found.cause, "in short": found.short}
        assert 0 < len(found.short) <= 80
    assert said == snapshot


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_no_pattern_fires_on_rounding_noise(pattern, dtype: str) -> None:
    for sample in range(10):
        noise = 2 * rung_named(dtype).epsilon * torch.rand_like(reference_tensor())

        wrong = wrong_tensor(
            reference_tensor(),
            partial(lambda n, r, at: r * (1 + n), noise),
            ROWS_OVER_TP if sample % 2 else (),
            dtype=dtype,
            noisy=False,
            earlier={"before": like("before", reference_tensor())},
        )
        assert pattern(wrong) is None


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(2,), (8,), (64,), (2, 2), (3, 5), (16, 64)])
def test_garbage_of_any_shape_is_seldom_explained(shape: tuple[int, ...], dtype: str) -> None:
    """Small tensors may fit a pattern by chance.  `confined` names no cause and is not counted."""
    explained = []
    for sample in range(40):
        reference, value, before = (drawn(f"{what} {sample}", *shape) for what in "rvb")
        if sample % 2:
            reference, value = reference**5, value**5
        wrong = wrong_tensor(
            reference, partial(lambda v, r, at: v, value), dtype=dtype, earlier={"before": before}
        )
        found = explain(wrong)
        if found is not None and found.name != "confined":
            explained.append(found)
    assert len(explained) <= 2, explained


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_a_single_element_is_explained_as_scaled_only_by_a_known_size(
    shape: tuple[int, ...],
) -> None:
    one = torch.full(shape, 0.7, dtype=torch.float64)
    factors = {4.0: "tp", 0.25: "tp", 2.0: "dp", 8.0: "", 6.0: "", 1.37: None, -1.0: None}
    for factor, axis in factors.items():
        times = partial(lambda f, r, at: f * r, factor)
        found = explain(wrong_tensor(one, times, kind="main_grad"))
        assert (found and found.axis) == axis, (factor, found)


def test_scalar_whose_replicas_are_terms_is_a_partial_sum() -> None:
    loss = torch.tensor(2.5, dtype=torch.float64)
    found = explain(wrong_tensor(loss, lambda r, at: r - 1 if at["dp"] else r * 0 + 1, kind="loss"))
    assert found is not None
    assert (found.name, found.axis) == ("partial sum", "dp")
    assert found.cause == "an all-reduce over dp is missing for this loss"


def test_equal_replicas_are_explained_as_scaled_and_not_as_a_partial_sum() -> None:
    """Replicas that each hold half add up to the reference as well."""
    found = explain(wrong_tensor(reference_tensor(), lambda r, at: r / 2))
    assert found is not None
    assert (found.name, found.axis) == ("scaled", "dp")


def test_all_axes_of_a_matching_size_are_named_with_the_likeliest_first() -> None:
    point = Point.of(tp=2, cp=2, dp=2)
    kinds = {
        "main_grad": "dp or cp or tp",
        "param_grad": "cp or tp or dp",
        "activation": "tp or cp",
    }
    for kind, names in kinds.items():
        wrong = wrong_tensor(reference_tensor(), lambda r, at: 2 * r, point=point, kind=kind)
        found = explain(wrong)
        assert found is not None
        assert f"which equals {names}" in found.text
        assert found.axis == names[:2]


def test_a_partial_sum_over_one_axis_and_mean_over_another_is_explained() -> None:
    def view(r: torch.Tensor, at: dict[str, int]) -> torch.Tensor:
        share = like("share", r)
        mine = share if at["tp"] == 0 else (r - share) / 3
        return mine * (1.5 if at["dp"] else 0.5)

    found = explain(wrong_tensor(reference_tensor(), view))
    assert found is not None
    assert found.name == "partial sum"
    assert "divided by the size of dp, equals the reference" in found.text


def test_a_value_rounded_to_a_narrower_dtype_is_explained_with_the_dtype() -> None:
    reference = reference_tensor().float().double()
    for dtype in (torch.bfloat16, torch.float16):
        wrong = wrong_tensor(
            reference, partial(lambda d, r, at: r.to(d).double(), dtype), noisy=False
        )
        found = explain(wrong)
        assert found is not None
        assert found.name == "narrower dtype"
        assert f"every value fits {str(dtype).removeprefix('torch.')} exactly" in found.text


def test_float32_values_in_a_float64_run_are_explained_as_float32() -> None:
    wrong = wrong_tensor(
        reference_tensor(), lambda r, at: r.float().double(), dtype="float64", noisy=False
    )
    found = explain(wrong)
    assert found is not None
    assert "every value fits float32 exactly" in found.text


def test_ones_instead_of_values_near_one_are_not_explained_as_narrowed() -> None:
    """0, 1 and 0.5 fit every dtype; a mask that is slightly off is not a cast."""
    reference = torch.ones(8, 4, dtype=torch.float64) + 1e-4 * drawn("off", 8, 4)
    found = explain(wrong_tensor(reference, lambda r, at: torch.ones_like(r), noisy=False))
    assert found is None or found.name != "narrower dtype"


def test_integers_exact_in_bfloat16_in_the_reference_too_are_not_explained_as_narrowed() -> None:
    reference = torch.arange(64.0, dtype=torch.float64).view(8, 8)
    found = explain(wrong_tensor(reference, lambda r, at: r.flip(0), noisy=False))
    assert found is not None
    assert found.name == "permuted rows"


def test_constant_rows_neither_hide_nor_imitate_a_permutation() -> None:
    reference = reference_tensor()
    reference[4:12] = 1.0  # the moves of equal rows cannot be seen
    moved = wrong_tensor(reference, lambda r, at: r[torch.tensor([1, 0, *range(2, 24)])])
    found = explain(moved)
    assert found is not None
    assert found.text.startswith("2 of the 24 indices along dimension 0 are in another order")
    constant = torch.ones(24, 16, dtype=torch.float64)
    assert explain(wrong_tensor(constant, lambda r, at: r + like("off", r))) is None


def test_zero_rows_of_the_reference_do_not_count_as_zeroed() -> None:
    reference = reference_tensor()
    reference[:20] = 0
    found = explain(wrong_tensor(reference, lambda r, at: like("garbage", r)))
    assert found is None


def test_a_shift_of_equal_rows_is_not_explained_as_shifted() -> None:
    reference = torch.ones(24, 1, dtype=torch.float64) * drawn("row", 1, 16)
    wrong = wrong_tensor(reference, lambda r, at: torch.cat([like("x", r)[:1], r[1:]]))
    found = explain(wrong)
    assert found is not None
    assert (found.name, found.text) == ("confined", "wrong only in row 0 of 24 in dimension 0")


def test_shifted_elements_of_a_vector_are_explained() -> None:
    vector = drawn("vector", 40)
    found = explain(wrong_tensor(vector, lambda r, at: r.roll(-1)))
    assert found is not None
    assert "back by one row: row 0 holds the values of the reference's row 1" in found.text


def test_a_confined_error_names_its_rows_columns_and_tp_rank() -> None:
    def view(r: torch.Tensor, at: dict[str, int]) -> torch.Tensor:
        changed = r.clone()
        changed[2:4, 12:16] += like("noise", r)[2:4, 12:16]
        return changed

    found = explain(wrong_tensor(reference_tensor(), view, (Shard(1, "tp"),)))
    assert found is not None
    assert found.text == (
        "wrong only in rows 2-3 of 24 in dimension 0 and "
        "rows 12-15 of 16 in dimension 1 (the part of tp rank 3)"
    )
    assert found.axis == "tp"


def test_wrong_rows_of_every_rank_are_named_with_the_rows_that_each_rank_holds() -> None:
    def view(r: torch.Tensor, at: dict[str, int]) -> torch.Tensor:
        changed = r.clone()
        changed[3:21] += like("noise", r)[3:21]
        return changed

    found = explain(wrong_tensor(reference_tensor(), view, ROWS_OVER_TP))
    assert found is not None
    assert found.short == "wrong only in rows 3-20 of 24 in dimension 0"
    assert found.text == (
        f"{found.short}; dimension 0 is cut over tp: rank 0 has 0-5, rank 1 has 6-11, rank 2 has "
        "12-17, rank 3 has 18-23"
    )
    assert found.axis == ""


def test_copies_that_are_cut_at_other_rows_are_named_with_the_rows_of_each() -> None:
    """As two stages' copies of a tied embedding are whose shards are summed."""
    reference = reference_tensor()
    rows, columns = reference.shape
    point, first = Point.of(pp=2, dp=2), {0: 6, 1: 8}
    parts = []
    for rank in range(point.world_size):
        at = point.coordinates(rank)
        begin, end = (0, first[at["pp"]]) if at["dp"] == 0 else (first[at["pp"]], rows)
        flat = Flat(begin * columns, (end - begin) * columns, (rows, columns), ("dp",))
        parts.append(
            Part(rank, at, reference.reshape(-1)[begin * columns : end * columns], (flat,))
        )
    value = reference.clone()
    value[6:8] += like("noise", reference)[6:8]
    wrong = WrongTensor(value, reference, parts, point.sizes, 1e-6, kind="main_grad")

    found = explain(wrong)
    assert found is not None
    assert found.text == (
        "wrong only in rows 6-7 of 24 in dimension 0; dimension 0 is cut over dp, not alike: "
        "at pp=0, rank 0 has 0-5, rank 1 has 6-23; at pp=1, rank 0 has 0-7, rank 1 has 8-23"
    )


def test_wrong_rows_inside_a_part_are_reported_as_inside_it() -> None:
    def view(r: torch.Tensor, at: dict[str, int]) -> torch.Tensor:
        changed = r.clone()
        changed[13:15] += like("noise", r)[13:15]
        return changed

    found = explain(wrong_tensor(reference_tensor(), view, ROWS_OVER_TP))
    assert found is not None
    assert found.text.endswith("rows 13-14 of 24 in dimension 0 (inside the part of tp rank 2)")


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([5, 11], "dimension 0 (inside the parts of tp ranks 0, 1), where chunks of tp end"),
        ([6, 18], "dimension 0 (inside the parts of tp ranks 1, 3), where chunks of tp begin"),
        ([5, 10], "rows 5, 10 of 24 in dimension 0 (inside the parts of tp ranks 0, 1)"),
        ([11], "row 11 of 24 in dimension 0 (inside the part of tp rank 1)"),
        ([0, 6], "rows 0, 6 of 24 in dimension 0 (inside the parts of tp ranks 0, 1)"),
        ([17, 23], "rows 17, 23 of 24 in dimension 0 (inside the parts of tp ranks 2, 3)"),
    ],
)
def test_wrong_rows_at_the_borders_of_chunks_are_said_to_be(rows: list[int], said: str) -> None:
    def view(r: torch.Tensor, at: dict[str, int]) -> torch.Tensor:
        changed = r.clone()
        changed[rows] += like("noise", r)[rows]
        return changed

    found = explain(wrong_tensor(reference_tensor(), view, ROWS_OVER_TP, kind="activation"))
    assert found is not None
    assert said in found.text
    assert ("an exchange between the ranks is missing" in found.cause) == ("chunks" in said)


def test_rows_that_are_equal_in_the_reference_too_are_not_explained_as_the_same_row() -> None:
    reference = reference_tensor()
    reference[3:10] = reference[3]
    wrong = wrong_tensor(
        reference, lambda r, at: with_rows(r, 3, 10, r + like("row", r)[:1]), kind="activation"
    )
    assert same_row(wrong) is None


def test_many_scattered_rows_are_counted() -> None:
    def view(r: torch.Tensor, at: dict[str, int]) -> torch.Tensor:
        changed = r.clone()
        changed[1::4] += like("noise", r)[1::4]
        return changed

    found = explain(wrong_tensor(reference_tensor(), view))
    assert found is not None
    assert found.text == "wrong only in 6 of 24 rows in dimension 0 (the first is row 1)"


def test_non_finite_values_are_located() -> None:
    def view(r: torch.Tensor, at: dict[str, int]) -> torch.Tensor:
        return r / 0 if at["tp"] == 3 else r

    found = explain(wrong_tensor(reference_tensor(), view, ROWS_OVER_TP, noisy=False))
    assert found is not None
    assert found.text == (
        "not finite only in rows 18-23 of 24 in dimension 0 (the part of tp rank 3)"
    )


def test_a_different_mask_is_recognised_by_the_values_that_neither_mask_zeroes() -> None:
    reference = reference_tensor() * (like("dropout", reference_tensor()) > -1)

    def view(r: torch.Tensor, at: dict[str, int]) -> torch.Tensor:
        return reference_tensor() * (like("other dropout", r) > -1)

    found = explain(wrong_tensor(reference, view, kind="activation"))
    assert found is not None
    assert found.name == "other mask"
    assert found.text == (
        "52 values are zero only in the candidate and 51 only in the reference; the others are "
        "right"
    )
    assert "per_example_dropout, with one seed on all ranks" in found.cause


def test_a_different_top_k_choice_is_not_explained_as_dropout() -> None:
    """A router returns such tensors: a map of the chosen experts, or their probabilities."""
    scores = reference_tensor()
    turned = scores.clone()
    best = scores[5].argsort(descending=True)
    turned[5, best[1]], turned[5, best[2]] = scores[5, best[2]], scores[5, best[1]]

    def kept(values: torch.Tensor, probabilities: bool) -> torch.Tensor:
        mask = torch.zeros_like(values).scatter(-1, values.topk(2).indices, 1.0)
        return mask * reference_tensor() if probabilities else mask

    for probabilities in (False, True):
        found = explain(
            wrong_tensor(
                kept(scores, probabilities),
                partial(lambda also, r, at: kept(turned, also), probabilities),
                kind="activation",
                noisy=False,
            )
        )
        assert found is not None
        assert found.name == "other choice"
        assert found.text.startswith("1 of 24 rows have their non-zero values in other places than")
        assert "decision: topk" in found.cause


def test_different_padding_rows_are_explained_as_confined() -> None:
    """Padding of another length zeroes whole rows; it is not a random mask."""
    reference = with_rows(reference_tensor(), 20, 24, torch.zeros(24, 16, dtype=torch.float64))

    def view(r: torch.Tensor, at: dict[str, int]) -> torch.Tensor:
        return with_rows(reference_tensor(), 18, 22, torch.zeros_like(r))

    found = explain(wrong_tensor(reference, view, kind="activation"))
    assert found is not None
    assert found.name == "confined"


def test_tensors_of_mostly_zeros_are_not_explained_as_masked() -> None:
    reference = reference_tensor() * (like("few", reference_tensor()) > 1)

    def view(r: torch.Tensor, at: dict[str, int]) -> torch.Tensor:
        return reference_tensor() * (like("other few", r) > 1)

    assert explain(wrong_tensor(reference, view, kind="activation")) is None


def test_complex_values_are_explained_too() -> None:
    reference = torch.complex(drawn("real", 24, 16), drawn("imaginary", 24, 16))
    faults = {
        "scaled": lambda r, at: r / 2,
        "permuted rows": lambda r, at: r[torch.tensor([1, 0, *range(2, 24)])],
        "zero": lambda r, at: r * 0,
    }
    for name, view in faults.items():
        found = explain(wrong_tensor(reference, view, noisy=False))
        assert found is not None
        assert found.name == name
    conjugate = explain(wrong_tensor(reference, lambda r, at: r.conj().resolve_conj(), noisy=False))
    assert conjugate is None


def test_a_wrong_update_on_a_single_device_is_confined_without_naming_a_rank() -> None:
    reference = reference_tensor()
    changed = with_rows(reference, 3, 9, like("noise", reference))
    wrong = wrong_tensor(reference, lambda r, at: changed, point=Point.of(), kind="update")
    found = explain(wrong)
    assert found is not None
    assert (found.text, found.axis) == ("wrong only in rows 3-8 of 24 in dimension 0", "")


@pytest.mark.parametrize("kind", ["update", "optimizer_state"])
def test_a_factor_of_an_optimizers_step_is_not_blamed_on_a_reduction(kind: str) -> None:
    """A beta of 0.8 in place of 0.9 doubles the first moment, also if an axis has size 2."""
    reference = torch.linspace(-1.0, 2.0, 24, dtype=torch.float64)
    wrong = WrongTensor(2 * reference, reference, [], {"dp": 2, "tp": 1}, allowed=1e-12, kind=kind)
    found = scaled(wrong)
    assert found is not None
    assert "its learning rate or a beta" in found.cause
    assert "counts replicas" not in found.cause


def test_replicas_that_differ_are_named_before_the_rows_that_are_wrong() -> None:
    def view(reference: torch.Tensor, at: dict[str, int]) -> torch.Tensor:
        seen = reference.clone()
        seen[:2] += 1 + at["tp"]
        return seen

    found = confined(wrong_tensor(reference_tensor(), view, point=Point.of(tp=2)))
    assert found is not None
    assert found.short.startswith(
        "replicas over tp differ; the first one is wrong only in rows 0-1"
    )
    assert found.cause.startswith("the ranks of tp must agree")
    point = Point.of(tp=2)
    found = confined(wrong_tensor(reference_tensor(), lambda r, _: view(r, {"tp": 0}), point=point))
    assert found is not None
    assert found.text.startswith("wrong only in rows 0-1")
