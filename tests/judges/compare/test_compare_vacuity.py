"""Each guard reports checks that could not have failed by name; a healthy pair has no reports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest
import torch

from pytest_trainsafe.config.checks import checks, is_accepted, require_known
from pytest_trainsafe.core.layout import Layout, Shard
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.core.tensor_id import INITIAL
from pytest_trainsafe.judges.compare.compare import compare
from pytest_trainsafe.judges.compare.guards.vacuity import _in_effect, guard
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.trace.schema import NoteEvent
from tests.support.compare.traces import STEPS, Bench, Edit, Record, only, training, write

POINT = Point.of(tp=2, dp=2)


def doubts(rung: RungTraces) -> dict[str, str]:
    """The messages of the findings of guards, by the name of the check."""
    comparison = compare(rung)
    assert not comparison.failed, comparison.findings[:2]
    found = guard(rung, comparison)
    assert {finding.verdict for finding in found} <= {"inconclusive"}
    require_known(finding.check for finding in found)
    assert {finding.dtype for finding in found} <= {rung.dtype}
    names = [finding.check for finding in found]
    assert len(set(names)) == len(names), names
    return {finding.check: finding.message for finding in found}


def without(*kinds: str) -> Edit:
    def edit(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor | None:
        return None if record.id.kind in kinds else part

    return edit


def zeroed(kind: str) -> list[Record]:
    """A training whose tensors of one kind are zero."""
    return [Record(r.id, r.tensor * (r.id.kind != kind), r.layout) for r in training()]


def pair(
    bench: Bench, records: list[Record], point: Point = POINT, **options: object
) -> RungTraces:
    """Equal records on a single device and at a Point."""
    reference = write(bench.path(), records)
    candidate = write(bench.path(), records, point, **options)  # type: ignore[arg-type]
    return RungTraces("float64", candidate, reference, reference)


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize(
    "point",
    [POINT, Point.of(tp=2, cp=2), Point.of(dp=4), Point.of(cp=2, dp=2), Point.of()],
    ids=str,
)
def test_no_guard_reports_a_healthy_pair(bench: Bench, point: Point, dtype: str) -> None:
    assert doubts(bench.rung(point, dtype=dtype)) == {}


def test_traces_without_common_tensors_are_inconclusive(bench: Bench) -> None:
    def renamed(record: Record) -> Record:
        return Record(msgspec.structs.replace(record.id, name="logits"), record.tensor)

    reference = bench.measures("float32")[0]
    losses = [renamed(record) for record in training() if record.id.kind == "loss"]
    candidate = write(bench.path(), losses, POINT, "float32")
    found = doubts(RungTraces("float32", candidate, reference, reference))
    assert "no tensor was compared" in found["compared"]
    assert "32 of the reference's 32 tensors of kind param_grad" in found["coverage:param_grad"]
    assert "8 of the reference's 8 tensors of kind main_grad" in found["coverage:main_grad"]


def test_traces_without_common_gradients_are_inconclusive(bench: Bench) -> None:
    found = doubts(bench.rung(POINT, without("param_grad", "main_grad")))
    assert "no gradient was compared" in found["gradients-compared"]
    assert "8 of the reference's 8 tensors of kind main_grad" in found["coverage:main_grad"]


@pytest.mark.parametrize("kind", ["activation", "activation_grad", "param_grad", "loss"])
def test_a_kind_that_the_candidate_does_not_record_is_uncovered(bench: Bench, kind: str) -> None:
    found = doubts(bench.rung(POINT, without(kind)))
    assert list(found) == [f"coverage:{kind}"]
    assert f"of kind {kind}" in found[f"coverage:{kind}"]


def test_a_kind_is_covered_if_most_of_its_tensors_are_compared(bench: Bench) -> None:
    def edit(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor | None:
        return None if record.id.kind == "activation_grad" and record.id.module == "fc1" else part

    assert doubts(bench.rung(POINT, edit)) == {}


@pytest.mark.parametrize("kind", ["optimizer_state", "grad_norm"])
def test_optimizer_states_and_the_gradient_norm_may_be_unrecorded(bench: Bench, kind: str) -> None:
    assert doubts(bench.rung(POINT, without(kind))) == {}


def test_gradients_that_are_all_zero_are_inconclusive(bench: Bench) -> None:
    found = doubts(pair(bench, zeroed("main_grad")))
    assert list(found) == ["gradients"]
    assert "every gradient of the reference is zero" in found["gradients"]


def test_parameters_that_never_moved_are_inconclusive(bench: Bench) -> None:
    start = {r.id.path: r.tensor for r in training() if r.id.step == INITIAL}
    still = [
        Record(r.id, start[r.id.path], r.layout) if r.id.kind == "param" else r for r in training()
    ]
    found = doubts(pair(bench, still))
    assert found == {"moved": "no parameter of the reference moved in any step"}


def flattened(kind: str, step: int | None = None) -> list[Record]:
    """A training whose matrices of one kind are zero."""
    return [
        Record(r.id, torch.zeros_like(r.tensor), r.layout)
        if r.id.kind == kind and r.tensor.ndim > 1 and step in (None, r.id.step)
        else r
        for r in training()
    ]


@pytest.mark.parametrize("sketched", [False, True])
def test_weights_that_all_start_as_zeros_are_inconclusive(bench: Bench, sketched: bool) -> None:
    found = doubts(pair(bench, flattened("param", INITIAL), sketched=sketched))
    assert list(found) == ["zeros"]
    assert "2 of 2 weights of the reference start as zeros, such as fc1.weight" in found["zeros"]


def test_one_weight_of_two_may_start_as_zeros(bench: Bench) -> None:
    records = [
        Record(r.id, torch.zeros_like(r.tensor), r.layout)
        if (r.id.kind, r.id.path, r.id.step) == ("param", "fc2.weight", INITIAL)
        else r
        for r in training()
    ]
    assert doubts(pair(bench, records)) == {}


def test_a_run_in_which_only_biases_and_scales_moved_is_inconclusive(bench: Bench) -> None:
    found = doubts(pair(bench, flattened("main_grad")))
    assert list(found) == ["moved"]
    assert "only biases and scales moved, such as norm.weight" in found["moved"]


def test_a_run_without_recorded_parameters_is_inconclusive(bench: Bench) -> None:
    records = [r for r in training() if r.id.kind != "param"]
    assert "no update of a parameter was compared" in doubts(pair(bench, records))["moved"]


def test_a_run_without_recorded_parameters_and_optimizer_is_inconclusive(bench: Bench) -> None:
    kinds = ("param", "main_grad", "optimizer_state")
    found = doubts(pair(bench, [r for r in training() if r.id.kind not in kinds]))
    assert list(found) == ["moved"]
    assert (
        "pass ctx.watch the optimizer, and record the kinds param and main_grad" in found["moved"]
    )


def test_a_run_with_an_unwatched_optimizer_passes_if_parameters_moved(bench: Bench) -> None:
    kinds = ("main_grad", "optimizer_state")
    assert doubts(pair(bench, [r for r in training() if r.id.kind not in kinds])) == {}


def test_a_run_with_an_unwatched_optimizer_is_inconclusive_if_no_parameter_moved(
    bench: Bench,
) -> None:
    start = {r.id.path: r.tensor for r in training() if r.id.step == INITIAL}
    still = [
        Record(r.id, start[r.id.path], r.layout) if r.id.kind == "param" else r
        for r in training()
        if r.id.kind not in ("main_grad", "optimizer_state")
    ]
    assert list(doubts(pair(bench, still))) == ["moved"]


def test_dp_ranks_with_the_same_data_are_inconclusive(bench: Bench) -> None:
    same = bench.rung(POINT, inputs=lambda at, index: index % 2)
    found = doubts(same)
    assert list(found) == ["dp-inputs"]
    assert "ranks 0 and 2 of dp saw the same data" in found["dp-inputs"]


def test_tp_ranks_with_different_data_are_inconclusive(bench: Bench) -> None:
    found = doubts(bench.rung(POINT, inputs=lambda at, index: (index, at["tp"])))
    text = "ranks 0 and 1 of tp saw different data, but ranks of tp must see the same data"
    assert found == {"tp-inputs": text}


def test_tp_ranks_may_have_different_inputs_on_later_pipeline_stages(bench: Bench) -> None:
    point = Point.of(tp=2, pp=2)
    shards = doubts(bench.rung(point, inputs=lambda at, index: (index, at["tp"] * at["pp"])))
    assert "tp-inputs" not in shards
    data = doubts(bench.rung(point, inputs=lambda at, index: (index, at["tp"] * (1 - at["pp"]))))
    assert data["tp-inputs"].startswith("ranks 0 and 1 of tp saw different data")


def test_a_dp_axis_without_recorded_inputs_or_sharding_is_not_in_effect(bench: Bench) -> None:
    """If no rank recorded its inputs, only layouts can show that dp is in effect."""
    point = Point.of(dp=2)
    rung = pair(
        bench, [r for r in plain(training()) if r.id.microbatch is None], point, inputs=None
    )
    assert list(doubts(rung)) == ["in-effect"]


def test_equal_data_of_dp_ranks_is_found_although_cp_ranks_have_different_data(
    bench: Bench,
) -> None:
    """cp ranks see different parts of the same sequence, and dp ranks different sequences."""
    point = Point.of(cp=2, dp=2)
    assert doubts(bench.rung(point, inputs=lambda at, index: (index, at["cp"]))) == {}
    found = doubts(bench.rung(point, inputs=lambda at, index: (index % 2, at["cp"])))
    assert list(found) == ["dp-inputs"]


def plain(records: list[Record]) -> list[Record]:
    return [Record(r.id, r.tensor) for r in records]


@pytest.mark.parametrize("axis", ["tp", "cp", "pp"])
def test_an_axis_without_effect_is_inconclusive(bench: Bench, axis: str) -> None:
    rung = pair(bench, plain(training()), Point.of({axis: 2}), inputs=lambda at, index: index)
    found = doubts(rung)
    assert list(found) == ["in-effect"]
    assert found["in-effect"].startswith(f"{axis}=2 had no effect")


def with_states(bench: Bench, layout_of: Callable[[int], Layout | None]) -> RungTraces:
    """A run at dp=2 with zero, whose dp rank r has the states laid out `layout_of(r)`."""

    def cut(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor | None:
        kept = record.id.kind != "optimizer_state" or layout_of(at["dp"]) is not None
        return part if kept else None

    layout = layout_of(0) or ()
    records = [
        Record(r.id, r.tensor, layout if r.id.kind == "optimizer_state" and r.tensor.ndim else ())
        for r in training()
    ]
    return pair(
        bench, records, Point.of(dp=2, zero=1), edit=cut, notes=[NoteEvent("read_axis", "zero")]
    )


@pytest.mark.parametrize(
    ("layout_of", "idle"),
    [
        (lambda rank: (), True),
        (lambda rank: (Shard(0, "dp"),), False),
        (lambda rank: () if rank == 0 else None, False),
    ],
    ids=["every rank keeps all", "each keeps a part", "one keeps it"],
)
def test_zero_is_not_in_effect_if_every_dp_rank_keeps_all_optimizer_states(
    bench: Bench, layout_of: Callable[[int], Layout | None], idle: bool
) -> None:
    rung = with_states(bench, layout_of)
    found = [text for check, text in _in_effect(rung.candidate) if check == "in-effect"]
    message = "zero=1 had no effect: every rank of dp keeps all of the optimizer's state"
    assert found == ([message] if idle else [])


def test_an_axis_that_only_splits_the_data_is_in_effect(bench: Bench) -> None:
    point = Point.of(cp=2)
    rung = pair(bench, plain(training()), point, inputs=lambda at, index: (index, at["cp"]))
    assert doubts(rung) == {}


def test_compile_is_not_in_effect_if_no_rank_compiled_anything(bench: Bench) -> None:
    point = Point.of(tp=2, compile=True)
    asked = [NoteEvent("read_axis", "compile")]
    message = "compile=True had no effect: torch.compile compiled nothing on any rank"
    assert doubts(bench.rung(point, notes=asked)) == {"in-effect": message}
    assert doubts(bench.rung(point, notes=[*asked, NoteEvent("ran", "compile")])) == {}


def test_dp_ranks_without_recorded_inputs_are_distinguished_by_their_outputs(
    bench: Bench,
) -> None:
    assert doubts(bench.rung(Point.of(dp=2), inputs=None)) == {}
    # Gradients of whole steps do not show which data each rank had.
    found = doubts(pair(bench, whole_steps(), Point.of(dp=2), inputs=None))
    assert "dp=2 had no effect" in found["in-effect"]
    assert "level='step'" not in found["in-effect"]  # the program did mark micro-batches


def whole_steps() -> list[Record]:
    return [record for record in training() if record.id.microbatch is None]


def test_dropout_that_drew_no_random_numbers_is_inconclusive(bench: Bench) -> None:
    notes = [NoteEvent("dropout", "0.1")]
    assert doubts(bench.rung(POINT, notes=notes)) == {}
    found = doubts(bench.rung(POINT, notes=notes, rng=lambda step: ("same", "same")))
    assert found == {"dropout": "dropout 0.1 is on, but drew no random numbers on rank 0"}
    assert doubts(bench.rung(POINT, rng=lambda step: ("same", "same"))) == {}


def test_an_optimizer_step_skipped_by_a_framework_is_inconclusive(bench: Bench) -> None:
    found = doubts(bench.rung(POINT, notes=[NoteEvent("skipped", "step 1, an overflow")]))
    text = "the candidate skipped an optimizer step, unlike the reference: step 1, an overflow"
    assert found == {"skipped-step": text}


def test_an_allowance_as_large_as_the_tensors_is_inconclusive(bench: Bench) -> None:
    reference, _, _ = bench.measures("float32")
    loud = write(bench.path(), training("float32", 3.0, 2), dtype="float32")
    rung = RungTraces("float32", bench.rung(POINT).candidate, reference, loud)
    found = doubts(rung)
    loud_kinds = [check for check in found if check.startswith("sensitive:")]
    assert "sensitive:main_grad" in loud_kinds
    assert all("by as much as their own size" in found[c] for c in loud_kinds)


def test_activations_that_are_all_zero_are_inconclusive(bench: Bench) -> None:
    def silenced(record: Record) -> Record:
        zeros = torch.zeros_like(record.tensor)
        return replace(record, tensor=zeros) if record.id.kind == "activation" else record

    silent = [silenced(record) for record in training()]
    reference = write(bench.path(), silent)
    candidate = write(bench.path(), silent, POINT)
    found = doubts(RungTraces("float64", candidate, reference, reference))
    assert list(found) == ["zeros"]
    assert "24 of 24 forward activations of the reference are zero" in found["zeros"]


def test_a_few_insensitive_tensors_are_not_reported(bench: Bench) -> None:
    """The gradient of a key bias is rounding noise in every program."""
    loud = only("main_grad", "fc1.bias", lambda r, at, p: p * 2)
    reference, _, _ = bench.measures("float32")
    perturbed = write(bench.path(), training("float32", 2**-23, 2), dtype="float32", edit=loud)
    rung = RungTraces("float32", bench.rung(POINT).candidate, reference, perturbed)
    assert len(compare(rung).insensitive) == STEPS
    assert doubts(rung) == {}


def test_unmeasured_rounding_is_inconclusive(bench: Bench) -> None:
    reference = write(bench.path(), training())
    candidate = write(bench.path(), training(), POINT)
    found = doubts(RungTraces("float64", candidate, reference))
    assert found == {
        "measured": "no rounding was measured, so only tensors with equal bits could pass"
    }


def test_an_unknown_check_name_is_refused_with_the_known_names() -> None:
    names = [name.removesuffix(":KIND") for name in checks()]
    require_known([*names, "coverage:param_grad", "sensitive:update"])
    with pytest.raises(ValueError, match=r"takes some of .*dp-inputs.*, not 'dp-input'"):
        require_known(["dp-input"])
    with pytest.raises(ValueError, match=r"'coverage:KIND', .* one of .*, not 'coverage:param_g"):
        require_known(["coverage:param_gard"])
    with pytest.raises(ValueError, match="takes 'moved', not 'moved:param'; only these checks"):
        require_known(["moved:param"])


def test_a_check_is_accepted_for_one_kind_or_for_all() -> None:
    assert is_accepted("coverage:param_grad", ["coverage:param_grad"])
    assert is_accepted("coverage:param_grad", ["coverage"])
    assert not is_accepted("coverage:main_grad", ["coverage:param_grad", "sensitive"])
