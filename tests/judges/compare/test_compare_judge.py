"""`compare` reports the first wrong tensor in dataflow, stops after its step, and explains it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
import torch

from pytest_trainsafe.core.finding import Finding
from pytest_trainsafe.core.layout import Shard
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.core.tensor_id import INITIAL, TensorId
from pytest_trainsafe.judges.compare.compare import compare
from pytest_trainsafe.judges.compare.comparison import Comparison
from pytest_trainsafe.judges.compare.guards.not_compared import not_compared
from pytest_trainsafe.judges.compare.judgement import suspect
from pytest_trainsafe.judges.compare.results import MAX_EXPLAINED
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.judges.loosen import Loosen
from pytest_trainsafe.trace.facts import Site
from pytest_trainsafe.trace.reader import Trace
from pytest_trainsafe.trace.schema import StepEvent
from tests.support.compare.traces import Bench, Edit, Record, draw, only, parameter, training, write
from tests.support.localize.blamed_traces import noting

POINT = Point.of(tp=2, dp=2)
DTYPES = ("float64", "float32", "bfloat16")


def garbage(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
    return (part + torch.randn(part.shape, generator=torch.Generator().manual_seed(3))).to(
        part.dtype
    )


def dropped(record: Record, at: dict[str, int], part: torch.Tensor) -> None:
    return None


def failing(comparison: Comparison) -> list[Finding]:
    return [finding for finding in comparison.findings if finding.verdict == "fail"]


def only_failure(comparison: Comparison) -> Finding:
    found = failing(comparison)
    assert len(found) == 1, found
    return found[0]


def every(edits: Sequence[Edit]) -> Edit:
    def edit(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor | None:
        for each in edits:
            changed = each(record, at, part)
            if changed is None:
                return None
            part = changed
        return part

    return edit


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("point", [POINT, Point.of(tp=2, cp=2), Point.of(dp=4)], ids=str)
def test_healthy_candidate_passes(bench: Bench, point: Point, dtype: str) -> None:
    found = compare(bench.rung(point, dtype=dtype))
    assert found.findings == []
    assert found.wrong == {}
    assert found.compared["update"] == found.compared["main_grad"] == 8
    assert found.compared["param"] == 4
    assert found.uncovered == {}
    assert 0 < found.worst < 1
    assert found.worst_id is not None
    assert found.moved == 8


def test_the_first_wrong_tensor_in_dataflow_leads_not_the_one_with_the_largest_error(
    bench: Bench,
) -> None:
    quiet = only("activation", "fc1.output", lambda r, at, p: p * (1 + 1e-4))
    loud = only("main_grad", "fc1.weight", lambda r, at, p: p * 1e6)
    found = failing(compare(bench.rung(POINT, every([loud, quiet]))))
    first = found[0]
    assert first.where == TensorId(0, 0, "activation", "fc1", "output")
    assert (first.check, first.judge, first.dtype) == ("norm", "compare", "float32")
    assert first.error is not None
    assert first.error == pytest.approx(1e-4, rel=0.1)
    assert first.allowed is not None
    assert first.error > 10 * first.allowed
    assert first.module_class == "Fc1"
    assert first.source.endswith("model.py:3")
    assert [f.order for f in found] == sorted(f.order for f in found)


def test_no_step_is_judged_after_the_first_failing_one(bench: Bench) -> None:
    found = compare(bench.rung(POINT, only("main_grad", "fc1.bias", garbage)))
    assert [f.where.step for f in found.findings if f.where] == [0]
    assert found.compared["main_grad"] == 4
    assert found.wrong == {"main_grad": 1}
    later = compare(bench.rung(POINT, only("main_grad", "fc1.bias", garbage, step=1)))
    assert only_failure(later).where == parameter("main_grad", "fc1.bias", 1)
    assert later.compared["main_grad"] == 8


@pytest.mark.parametrize(
    ("kind", "path", "words"),
    [
        ("activation", "fc1.output", "the module is never called"),
        (
            "param_grad",
            "norm.weight",
            "the parameter has none there, or has another name",
        ),
        (
            "main_grad",
            "norm.weight",
            "its micro-batch gradients are there, but it has none when the optimizer steps",
        ),
    ],
)
def test_missing_tensor_of_a_kind_that_is_recorded_fails(
    bench: Bench, kind: str, path: str, words: str
) -> None:
    found = compare(bench.rung(POINT, only(kind, path, dropped)))
    first = failing(found)[0]
    assert first.check == "missing"
    assert first.where is not None
    assert (first.where.kind, first.where.path) == (kind, path)
    assert words in first.message
    assert found.wrong[kind] == len(failing(found))
    assert found.compared[kind] > found.wrong[kind]


def test_a_kind_that_no_rank_recorded_is_uncovered_but_does_not_fail(bench: Bench) -> None:
    def edit(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor | None:
        return None if record.id.kind in ("param_grad", "optimizer_state") else part

    found = compare(bench.rung(POINT, edit))
    assert not found.failed
    assert found.uncovered == {"param_grad": 32, "optimizer_state": 8}


def test_initial_parameters_must_be_equal_bit_by_bit(bench: Bench) -> None:
    def edit(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
        if record.id == parameter("param", "fc1.bias", INITIAL) and at["tp"] == 1:
            part[3] = torch.nextafter(part[3], part[3] + 1)
        return part

    found = compare(bench.rung(POINT, edit))
    finding = only_failure(found)
    assert finding.check == "initial"
    assert "1 of 16 values differ" in finding.message
    assert "ctx.initialize(model)" in finding.message
    assert finding.pattern is not None
    assert "row 11 of 16 in dimension 0" in finding.pattern.text
    assert found.compared == {"param": 4}


def test_initial_shards_on_the_wrong_tp_rank_are_explained(bench: Bench) -> None:
    def edit(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
        if record.id.kind == "param" and record.id.path == "fc1.weight":
            return record.tensor.to(part.dtype)[8 * (1 - at["tp"]) :][:8].clone()
        return part

    finding = only_failure(compare(bench.rung(POINT, edit)))
    assert finding.pattern is not None
    assert (finding.pattern.name, finding.pattern.axis) == ("another shard", "tp")


def test_an_initial_difference_from_zeros_has_an_absolute_error(bench: Bench) -> None:
    zeros = [
        Record(r.id, r.tensor * 0, r.layout) if r.id.path == "fc1.bias" else r
        for r in training()
        if r.id.step == INITIAL or r.id.kind == "main_grad"
    ]
    reference = write(bench.path(), zeros)
    edit = only("param", "fc1.bias", lambda r, at, p: p + 1, step=INITIAL)
    candidate = write(bench.path(), zeros, edit=edit)
    finding = only_failure(compare(RungTraces("float64", candidate, reference, reference)))
    assert (finding.check, finding.error) == ("initial", 4.0)


def test_a_parameter_is_judged_by_its_update_and_not_by_its_value(bench: Bench) -> None:
    """The error is a tenth of the update, but only a thousandth of the parameter."""
    start = draw("param norm.weight", (8,))

    def edit(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
        if record.id.kind == "param" and record.id.path == "norm.weight" and record.id.step == 0:
            return (start + 0.9 * (part - start)).to(part.dtype)
        return part

    found = compare(bench.rung(POINT, edit))
    finding = failing(found)[0]
    assert finding.where == TensorId(0, None, "update", "norm", "weight")
    assert finding.error == pytest.approx(0.1, rel=0.01)
    assert finding.pattern is not None
    assert finding.pattern.text == "the value is 0.9 times the reference"
    assert found.wrong == {"update": 1}


def test_a_parameter_that_did_not_move_is_explained(bench: Bench) -> None:
    values = {r.id.path: r.tensor for r in training("float32") if r.id.step == INITIAL}

    def edit(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
        stuck = record.id.kind == "param" and record.id.path == "norm.weight"
        return values["norm.weight"].to(part.dtype) if stuck else part

    finding = failing(compare(bench.rung(POINT, edit)))[0]
    assert finding.pattern is not None
    assert finding.pattern.text == "the parameter did not move"


def adam(flips: bool) -> list[Record]:
    """One step of a sign-like optimizer; the gradient of element 2 is rounding noise."""
    noise = -1 if flips else 1
    gradient = draw("gradient", (8,))
    gradient[2] = noise * 1e-17
    start = draw("start", (8,))
    layout = ()
    return [
        Record(parameter("param", "fc1.bias", INITIAL), start, layout),
        Record(parameter("main_grad", "fc1.bias", 0), gradient, layout),
        Record(parameter("param", "fc1.bias", 0), start - 0.01 * gradient.sign(), layout),
    ]


def test_an_update_element_whose_sign_rounding_decides_is_not_judged(bench: Bench) -> None:
    reference = write(bench.path(), adam(flips=False))
    candidate = write(bench.path(), adam(flips=True))
    found = compare(RungTraces("float64", candidate, reference, reference))
    assert found.findings == []
    assert found.compared == {"param": 1, "main_grad": 1, "update": 1}

    def other(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
        if record.id.kind == "param" and record.id.step == 0:
            part[5] += 0.02
        return part

    wrong = write(bench.path(), adam(flips=True), edit=other)
    finding = only_failure(compare(RungTraces("float64", wrong, reference, reference)))
    assert finding.where is not None
    assert finding.where.kind == "update"
    assert finding.pattern is not None
    assert "row 5 of 8 in dimension 0" in finding.pattern.text


def test_an_update_element_with_an_exactly_zero_gradient_is_judged(bench: Bench) -> None:
    """An embedding row that no token uses has a gradient of 0, and moves by weight decay alone."""
    gradient = draw("sparse", (8,))
    gradient[3] = 0
    start = draw("start", (8,))

    def records(decay: float) -> list[Record]:
        after = start - 0.01 * gradient - decay * start
        return [
            Record(parameter("param", "fc1.bias", INITIAL), start),
            Record(parameter("main_grad", "fc1.bias", 0), gradient),
            Record(parameter("param", "fc1.bias", 0), after),
        ]

    def undecayed(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
        if record.id.kind == "param":
            part[3] = start[3]
        return part

    reference = write(bench.path(), records(0.1))
    candidate = write(bench.path(), records(0.1), edit=undecayed)
    finding = only_failure(compare(RungTraces("float64", candidate, reference, reference)))
    assert finding.pattern is not None
    assert "row 3 of 8 in dimension 0" in finding.pattern.text


def test_an_update_element_whose_zero_gradient_the_candidate_rounds_is_not_judged(
    bench: Bench,
) -> None:
    """Terms that cancel in one order of summation leave 1e-19 in another; Adam scales that up."""

    def records(rounding: float, step: float) -> list[Record]:
        gradient, start = draw("cancelled", (8,)), draw("start", (8,))
        gradient[3] = rounding
        update = 0.01 * gradient.sign()
        update[3] = step
        return [
            Record(parameter("param", "fc1.bias", INITIAL), start),
            Record(parameter("main_grad", "fc1.bias", 0), gradient),
            Record(parameter("param", "fc1.bias", 0), start - update),
        ]

    reference = write(bench.path(), records(0, 0))
    candidate = write(bench.path(), records(1e-19, 1e-6))
    found = compare(RungTraces("float64", candidate, reference, reference))
    assert found.findings == []
    assert found.compared["update"] == 1
    moved = write(bench.path(), records(0, 1e-6))
    finding = only_failure(compare(RungTraces("float64", moved, reference, reference)))
    assert finding.where is not None
    assert finding.where.kind == "update"


def test_second_moments_that_float16_stores_as_subnormals_may_differ_by_their_spacing(
    bench: Bench,
) -> None:
    spacing = 2.0**-24

    def records(extra: float) -> list[Record]:
        moments = (draw("moments", (64,)).abs() * 40).round() * spacing
        moments[::2] += extra
        return [Record(parameter("optimizer_state", "fc1.bias.exp_avg_sq", 0), moments)]

    reference = write(bench.path(), records(0), dtype="float16")
    near = write(bench.path(), records(spacing), dtype="float16")
    far = write(bench.path(), records(8 * spacing), dtype="float16")
    assert compare(RungTraces("float16", near, reference, reference)).findings == []
    assert only_failure(compare(RungTraces("float16", far, reference, reference))).where is not None


def with_masters(records: Sequence[Record], lag: bool = False) -> list[Record]:
    """bfloat16 parameters with float32 master copies, which the writer keeps as they are."""
    found: list[Record] = []
    for record in records:
        if record.id.kind == "param" and record.id.step != INITIAL:
            master = msgspec.structs.replace(record.id, kind="master_param")
            found.append(Record(master, record.tensor, record.layout))
        found.append(record)
    return found


def wide_masters(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
    if record.id.kind != "master_param":
        return part
    rows = record.tensor.to(torch.float32)
    for placement in record.layout:
        assert isinstance(placement, Shard)
        size = rows.shape[placement.dim] // 2
        rows = (
            rows.narrow(placement.dim, at["tp"] * size, size) if part.shape != rows.shape else rows
        )
    return rows.clone()


def test_master_copies_are_judged_and_parameters_must_equal_the_rounded_master_copies(
    bench: Bench,
) -> None:
    reference = write(
        bench.path(), with_masters(training("bfloat16")), dtype="bfloat16", edit=wide_masters
    )

    def rung(edit: Edit) -> RungTraces:
        records = with_masters(training("bfloat16", 2**-24, 3))
        candidate = write(bench.path(), records, POINT, "bfloat16", every([wide_masters, edit]))
        return RungTraces("bfloat16", candidate, reference, bench.measures("bfloat16")[1])

    clean = compare(rung(lambda r, at, p: p))
    assert failing(clean) == []
    assert clean.compared["update"] == 8

    def stale(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
        if record.id == parameter("param", "norm.weight", 1):
            return draw("param norm.weight", (8,)).to(part.dtype)
        return part

    finding = only_failure(compare(rung(stale)))
    assert (finding.check, finding.where) == ("master-copy", parameter("param", "norm.weight", 1))
    assert "does not equal its rounded master copy" in finding.message

    def half(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
        if record.id.kind == "master_param" and record.id.path == "norm.weight":
            return part + 0.1
        return part

    wrong = failing(compare(rung(half)))
    assert ("update", "norm.weight") in {(f.where.kind, f.where.path) for f in wrong if f.where}


def test_an_unreduced_gradient_is_a_replicas_finding_and_a_partial_sum(bench: Bench) -> None:
    """Each dp rank keeps the sum over its own micro-batches."""

    def edit(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
        if record.id == parameter("main_grad", "norm.weight", 0):
            own = [draw(f"grad 0 {i} norm.weight", (8,)) for i in (2 * at["dp"], 2 * at["dp"] + 1)]
            return sum(own, torch.zeros(())).to(part.dtype)
        return part

    found = compare(bench.rung(POINT, edit))
    first, second = failing(found)
    assert {first.judge, second.judge} == {"compare", "align"}
    judged = first if first.judge == "compare" else second
    replicas = second if judged is first else first
    assert replicas.check == "replicas"
    assert judged.pattern is not None
    assert (judged.pattern.name, judged.pattern.axis) == ("partial sum", "dp")
    assert found.wrong == {"main_grad": 1}


def test_a_wrong_second_replica_is_explained_if_the_first_is_right(bench: Bench) -> None:
    def stale(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
        if record.id == parameter("main_grad", "norm.weight", 1) and at["tp"] == 1:
            grads = [draw(f"grad 0 {i} norm.weight", (8,)) for i in range(4)]
            return sum(grads, torch.zeros(())).to(part.dtype)
        return part

    finding = only_failure(compare(bench.rung(POINT, stale)))
    assert (finding.judge, finding.check) == ("align", "replicas")
    assert finding.pattern is not None
    assert finding.pattern.name == "stale"
    text = "on tp rank 1: the value equals the reference's value of the previous step"
    assert finding.pattern.text == text


def test_replicas_that_are_all_correct_differ_by_rounding(bench: Bench) -> None:
    def rounded(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
        if record.id == parameter("main_grad", "norm.weight", 1) and at["tp"] == 1:
            return torch.nextafter(part, torch.full_like(part, torch.inf))
        return part

    finding = only_failure(compare(bench.rung(POINT, rounded)))

    assert finding.check == "replicas"
    assert finding.pattern is not None
    assert finding.pattern.text == "every replica agrees with the reference up to rounding"
    assert "drift apart" in finding.pattern.cause


@pytest.mark.parametrize("times", [1, 2])
def test_a_gradient_with_that_of_the_previous_step_in_it_is_explained_as_uncleared(
    bench: Bench, times: int
) -> None:
    def edit(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
        if record.id == parameter("main_grad", "norm.weight", 1):
            left = [draw(f"grad 0 {i} norm.weight", (8,)) for i in range(4)]
            return part + times * sum(left, torch.zeros(())).to(part.dtype)
        return part

    finding = failing(compare(bench.rung(POINT, edit)))[0]
    assert finding.pattern is not None
    assert finding.pattern.name == "uncleared"
    often = "2 times " if times == 2 else ""
    text = f"the value is the reference plus {often}the gradient of the previous step"
    assert finding.pattern.text == text


def test_half_of_the_previous_gradient_in_a_gradient_has_no_known_cause(bench: Bench) -> None:
    def edit(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
        if record.id == parameter("main_grad", "norm.weight", 1):
            left = [draw(f"grad 0 {i} norm.weight", (8,)) for i in range(4)]
            return part + 0.5 * sum(left, torch.zeros(())).to(part.dtype)
        return part

    finding = failing(compare(bench.rung(POINT, edit)))[0]
    assert finding.pattern is None or finding.pattern.name != "uncleared"


def test_a_gradient_that_only_one_micro_batch_lacks_is_no_matter_of_its_name(bench: Bench) -> None:
    def edit(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor | None:
        lost = record.id.kind == "param_grad" and record.id.microbatch == 3
        return None if lost else part

    finding = failing(compare(bench.rung(POINT, edit)))[0]
    assert "so the backward of this micro-batch does not run" in finding.message
    assert "another name" not in finding.message


def test_a_micro_batch_missing_from_a_gradient_is_reported_by_its_number(bench: Bench) -> None:
    def edit(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
        if record.id.kind == "main_grad" and record.id.path == "fc2.weight":
            kept = [draw(f"grad {record.id.step} {i} fc2.weight", (8, 16)) for i in range(3)]
            return sum(kept, torch.zeros(()))[:, 8 * at["tp"] :][:, :8].to(part.dtype)
        return part

    finding = failing(compare(bench.rung(POINT, edit)))[0]
    assert finding.pattern is not None
    assert finding.pattern.text == "micro-batch 3 of 4 (counted from 0) is missing from the sum"


def test_an_activation_of_the_previous_micro_batch_is_explained_as_stale(bench: Bench) -> None:
    def edit(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
        if (
            record.id.path == "fc2.output"
            and record.id.kind == "activation"
            and record.id.microbatch
        ):
            name = f"activation {record.id.step} {record.id.microbatch - 1} fc2"
            return draw(name, (12, 8)).to(part.dtype)
        return part

    finding = failing(compare(bench.rung(POINT, edit)))[0]
    assert finding.where == TensorId(0, 1, "activation", "fc2", "output")
    assert finding.pattern is not None
    stale = "the value equals the reference's value of the previous micro-batch, 0"
    assert finding.pattern.text == stale


def test_a_hole_is_reported_once_by_align(bench: Bench) -> None:
    """Elements that no rank recorded are not reported as non-finite values as well."""

    def edit(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor | None:
        gone = record.id == parameter("main_grad", "fc1.weight", 0) and at["tp"] == 1
        return None if gone else part

    found = compare(bench.rung(POINT, edit))
    finding = only_failure(found)
    assert (finding.judge, finding.check) == ("align", "hole")
    assert found.wrong == {"main_grad": 1}
    assert found.compared["main_grad"] == 4


def test_a_wrong_shape_is_reported_with_the_source_of_the_layout(bench: Bench) -> None:
    edit = only("activation", "norm.output", lambda r, at, p: p[None])
    finding = failing(compare(bench.rung(POINT, edit)))[0]
    assert "attribute" in finding.message


def test_non_finite_values_in_the_candidate_fail_and_are_located(bench: Bench) -> None:
    def edit(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
        return part / 0 if at["tp"] == 1 else part

    finding = failing(compare(bench.rung(POINT, only("activation", "fc1.output", edit))))[0]
    assert finding.check == "non-finite"
    assert finding.pattern is not None
    assert "(the part of tp rank 1)" in finding.pattern.text


def test_nan_in_the_reference_is_inconclusive_with_the_check_reference_finite(bench: Bench) -> None:
    broken = only("activation", "fc1.output", lambda r, at, p: p.fill_(torch.nan), step=0)
    reference = write(bench.path(), training("float32"), dtype="float32", edit=broken)
    rung = bench.rung(POINT)
    found = compare(RungTraces("float32", rung.candidate, reference, rung.perturbed))
    assert not found.failed
    assert {f.check for f in found.findings} == {"reference-finite"}
    assert "192 of 192 values of the reference are not finite" in found.findings[0].message


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_non_finite_noise_measurement_counts_as_no_measurement(
    bench: Bench, value: float
) -> None:
    """A response of NaN or infinity would let any error pass."""
    broken = only("activation", "fc1.output", lambda r, at, p: p.fill_(value), step=0)
    perturbed = write(bench.path(), training("float32", 2**-23, 2), dtype="float32", edit=broken)
    rung = bench.rung(POINT)
    without = compare(RungTraces("float32", rung.candidate, rung.reference, perturbed))
    assert {f.check for f in without.findings} == {"measured"}
    assert without.findings[0].verdict == "inconclusive"
    both = compare(RungTraces("float32", rung.candidate, rung.reference, perturbed, rung.shadow))
    assert both.findings == []


def test_different_numbers_of_steps_end_the_comparison(bench: Bench) -> None:
    candidate = write(bench.path(), training("float32", steps=1), POINT, "float32")
    rung = bench.rung(POINT)
    found = compare(RungTraces("float32", candidate, rung.reference, rung.perturbed))
    finding = only_failure(found)
    assert finding.check == "steps"
    assert (
        "the candidate recorded 1 steps on rank 0, but the reference recorded 2" in finding.message
    )


def test_loosened_tensor_passes_and_is_listed_with_its_reason(bench: Bench) -> None:
    edit = only("main_grad", "norm.weight", lambda r, at, p: p * (1 + 1e-5))
    assert compare(bench.rung(POINT, edit)).failed
    loosen = [Loosen("norm.*", 100, "summed in another order", kind="main_grad")]
    found = compare(bench.rung(POINT, edit), loosen)
    assert not found.failed
    assert [(str(id), entry.reason) for id, entry in found.loosened] == [
        ("norm.weight · main_grad · step 0", "summed in another order"),
        ("norm.weight · main_grad · step 1", "summed in another order"),
    ]


def test_a_shadow_with_other_initial_parameters_is_not_used(bench: Bench) -> None:
    rung = bench.rung(POINT, only("activation", "fc1.output", lambda r, at, p: p * 1.001))
    # This shadow is so far off that everything would pass.
    far = [Record(r.id, r.tensor * 1.5, r.layout) for r in training("float32")]
    usable = [Record(r.id, r.tensor, r.layout) for r in training("float32")]
    elsewhere = RungTraces(
        "float32", rung.candidate, rung.reference, rung.perturbed, write(bench.path(), far)
    )
    assert elsewhere.usable_shadow() is None
    assert compare(elsewhere).failed
    good = RungTraces("float32", rung.candidate, rung.reference, None, write(bench.path(), usable))
    assert good.usable_shadow() is not None


def test_a_shadow_that_drew_other_random_numbers_is_not_used_and_this_is_reported(
    bench: Bench,
) -> None:
    rung = bench.rung(POINT)
    assert rung.reference.ranks[0].steps

    def stepped(*states: tuple[str, str]) -> Trace:
        trace = write(bench.path(), training("float32"))
        trace.ranks[0].steps = [
            StepEvent(number, 1, before, after, True, 0.0)
            for number, (before, after) in enumerate(states)
        ]
        return trace

    ours = stepped(("a", "b"), ("b", "b"))
    for states, flaw in [
        ((("x", "b"), ("b", "y")), ""),  # seeded again within the step; nothing drawn after it
        ((("a", "y"), ("y", "y")), "draws different random numbers in step 0"),
    ]:
        judged = RungTraces("float32", rung.candidate, ours, rung.perturbed, stepped(*states))
        found = judged.shadow_flaw()
        assert (found.what if found is not None else "") == flaw
        assert (judged.usable_shadow() is None) == bool(flaw)
        reported = [text for text in not_compared(judged, compare(judged)) if "float64" in text]
        expected = (
            "the tolerances in float32 are measured by noise alone, not by the distance from a "
            f"float64 run: in float64, the reference {flaw}. Draw in a fixed dtype and cast: "
            "torch.randn(..., dtype=torch.float32).to(ctx.dtype)"
        )
        assert reported == ([expected] if flaw else [])


def test_a_reference_on_several_ranks_is_compared_step_by_step(bench: Bench) -> None:
    """Comparing rank by rank would judge the last step of one rank before the first of another."""
    rung = bench.rung(Point.of(dp=4), only("main_grad", "fc1.bias", garbage, step=1))
    reference = write(bench.path(), training("float32"), Point.of(dp=2), "float32")
    finding = only_failure(
        compare(RungTraces("float32", rung.candidate, reference, rung.perturbed))
    )
    assert finding.where == parameter("main_grad", "fc1.bias", 1)


def test_a_reference_whose_parts_cannot_be_merged_is_inconclusive(bench: Bench) -> None:
    def edit(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
        odd = record.id == parameter("main_grad", "fc1.bias", 0) and at["dp"] == 1
        return part + 1 if odd else part

    reference = write(bench.path(), training("float32"), Point.of(dp=2), "float32", edit)
    rung = bench.rung(POINT)
    found = compare(RungTraces("float32", rung.candidate, reference, rung.perturbed))
    assert [f.check for f in found.findings] == ["reference"]
    assert (
        "the parts of the reference cannot be merged: replicas over dp differ"
        in found.findings[0].message
    )


def test_wrong_integers_and_booleans_fail_and_integers_are_explained(bench: Bench) -> None:
    choice = TensorId(0, 0, "activation", "fc1", "output.1")
    mask = TensorId(0, 0, "activation", "fc1", "output.2")
    records = [
        Record(choice, torch.arange(12)),
        Record(mask, torch.arange(12) > 5),
        *training("float32"),
    ]
    reference = write(bench.path(), records, dtype="float32")
    rung = bench.rung(POINT)

    def edit(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
        return part if record.tensor.is_floating_point() else part.roll(1, 0)

    candidate = write(bench.path(), records, POINT, "float32", edit)
    found = failing(
        compare(RungTraces("float32", candidate, reference, rung.perturbed, rung.shadow))
    )
    assert [(f.where, f.check) for f in found] == [(choice, "exact"), (mask, "exact")]
    assert found[0].pattern is not None
    assert found[0].pattern.name == "shifted"
    assert found[1].message == "2 of 12 values differ"


def test_only_the_first_failures_are_explained(bench: Bench) -> None:
    found = failing(compare(bench.rung(POINT, lambda r, at, p: p * 2 if r.id.step == 0 else p)))
    explained = [finding for finding in found if finding.pattern is not None]
    assert len(explained) == MAX_EXPLAINED < len(found)


def test_trace_without_steps_can_be_compared(bench: Bench) -> None:
    records = [r for r in training() if r.id.step == INITIAL]
    reference = write(bench.path(), records)
    edit = only("param", "fc1.weight", lambda r, at, p: p / 2)
    candidate = write(bench.path(), records, POINT, edit=edit)
    finding = only_failure(compare(RungTraces("float64", candidate, reference, reference)))
    assert finding.pattern is not None
    assert finding.pattern.name == "scaled"


def test_a_wrong_gradient_of_an_output_leads_to_what_uses_the_output(bench: Bench) -> None:
    lead = failing(compare(bench.rung(POINT, only("activation_grad", "norm.output", garbage))))[0]
    assert lead.where is not None
    assert (lead.where.module, lead.user, lead.module_class) == ("norm", "fc1", "Fc1")
    assert lead.source.endswith("model.py:3")  # of fc1; that of norm has another line
    assert "the backward of what uses the output makes its gradient, here fc1" in suspect(lead)


def test_the_first_gradient_of_a_backward_leads_to_the_line_that_starts_it(bench: Bench) -> None:
    wrong = bench.rung(POINT, only("activation_grad", "fc2.output", garbage))
    [lead, *_] = failing(compare(wrong))
    assert (lead.user, lead.module_class) == ("", "Fc2")  # no such line is known
    [lead, *_] = failing(compare(noting(wrong, Site("backward", "/me/fit.py:30"))))
    assert (lead.user, lead.module_class, lead.source) == ("", "", "/me/fit.py:30")
    assert suspect(lead).startswith("starts the backward")
