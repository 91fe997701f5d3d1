"""`assert_equivalent` accepts traces or paths, passes equal runs, and refuses invalid input."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from pytest_trainsafe import assert_equivalent, assert_trainsafe
from pytest_trainsafe.assertions import Loosen, TrainsafeFailure
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.trace.reader import Trace, TraceError
from tests.support.compare.traces import Bench, Edit, healthy, only, training, write

POINT = Point.of(tp=2, dp=2)


def candidate(bench: Bench, edit: Edit = healthy, **options: object) -> Trace:
    return bench.rung(POINT, edit, **options).candidate  # type: ignore[arg-type]


def report(*traces: object, **options: object) -> str:
    with pytest.raises(TrainsafeFailure) as failure:
        assert_equivalent(*traces, **options)  # type: ignore[arg-type]
    text = str(failure.value)
    for line in text.splitlines():
        assert len(line) <= 100, line
        assert line == line.rstrip(), line
    return text


def flat(text: str) -> str:
    return " ".join(text.split())


def test_traces_and_their_directories_are_both_accepted(bench: Bench) -> None:
    reference, perturbed, shadow = bench.measures("float32")
    assert shadow is not None
    good = candidate(bench)
    assert_equivalent(good, reference, perturbed=perturbed, shadow=shadow)
    assert_equivalent(good.path, str(reference.path), perturbed=perturbed.path, shadow=shadow.path)


def test_failure_is_an_assertion_error_with_the_whole_report(bench: Bench) -> None:
    reference, perturbed, shadow = bench.measures("float32")
    bad = candidate(bench, only("main_grad", "norm.weight", lambda r, at, p: 2 * p))
    text = report(bad, reference, perturbed=perturbed, shadow=shadow)
    one_line = flat(text)
    assert text.startswith("trainsafe: model.train at tp=2 dp=2 differs from its single-device")
    assert "starts at norm.weight · main_grad · step 0 · float32" in one_line
    assert "the value is 2 times the reference, which equals dp or tp" in one_line
    assert "3 of 4 main gradients" in one_line
    assert "look at tests/support/compare/model.py:4 (module class Norm)" in one_line
    assert re.search(r"compared \d+ tensors in float32, with a single device", one_line)
    assert "rerun" not in text
    assert issubclass(TrainsafeFailure, AssertionError)


def test_without_measurements_only_equal_bits_pass(bench: Bench) -> None:
    reference = bench.measures("float32")[0]
    records = training("float32", 2**-23, 1)
    assert_equivalent(write(bench.path(), records, POINT, "float32"), reference)
    text = flat(report(candidate(bench), reference))
    assert "no rounding was measured that would allow a difference" in text
    assert "accepted measured" not in text


def test_an_inconclusive_comparison_fails_unless_its_check_is_accepted(bench: Bench) -> None:
    reference, perturbed, shadow = bench.measures("float32")
    same = candidate(bench, inputs=lambda at, index: index % 2)
    measured = {"perturbed": perturbed, "shadow": shadow}
    text = flat(report(same, reference, **measured))
    assert "inconclusive, so not a pass" in text
    assert "because ranks 0 and 2 of dp saw the same data" in text
    assert "accept=['dp-inputs']" in text
    assert_equivalent(same, reference, **measured, accept=["dp-inputs"])  # type: ignore[arg-type]


def test_a_report_names_the_accepted_checks(bench: Bench) -> None:
    reference, perturbed, _ = bench.measures("float32")
    nan = only("loss", "loss", lambda r, at, p: p.fill_(torch.nan), step=0)
    broken = write(bench.path(), training("float32"), dtype="float32", edit=nan)
    bad = candidate(bench, only("main_grad", "norm.weight", lambda r, at, p: 2 * p))
    text = flat(report(bad, broken, perturbed=perturbed, accept=["reference-finite"]))
    assert "accepted reference-finite: 1 of 1 values of the reference are not finite" in text
    assert reference.complete


def test_loosened_tolerances_are_applied_and_listed_in_the_report(bench: Bench) -> None:
    reference, perturbed, shadow = bench.measures("float32")
    off = only("main_grad", "norm.weight", lambda r, at, p: p * (1 + 1e-5))
    loosen = [Loosen("norm.weight", 100, "summed in another order")]
    measured = {"perturbed": perturbed, "shadow": shadow, "loosen": loosen}
    assert_equivalent(candidate(bench, off), reference, **measured)  # type: ignore[arg-type]
    worse = only("main_grad", "norm.weight", lambda r, at, p: p * 1.1)
    text = flat(report(candidate(bench, worse), reference, **measured))
    text_of_entry = "loosened norm.weight by 100 (for example norm.weight): summed in another order"
    assert text_of_entry in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("*", 0.5, "why"), "a finite factor of at least 1, not 0.5"),
        (("*", float("inf"), "why"), "a finite factor of at least 1, not inf"),
        (("*", float("nan"), "why"), "a finite factor of at least 1, not nan"),
        (("*.bias", 2, "  "), "loosening the tolerance of '*.bias' needs a reason"),
    ],
)
def test_loosen_needs_a_finite_factor_of_at_least_one_and_a_reason(
    arguments: tuple, words: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        Loosen(*arguments)


@pytest.mark.parametrize("entry", [("norm.wieght", "*"), ("*", "gradients")])
def test_loosen_that_matches_nothing_is_refused(bench: Bench, entry: tuple[str, str]) -> None:
    reference, perturbed, _ = bench.measures("float32")
    loosen = [Loosen(entry[0], 10, "why", kind=entry[1])]
    with pytest.raises(ValueError, match="matches no tensor of the reference"):
        assert_equivalent(candidate(bench), reference, perturbed=perturbed, loosen=loosen)


def test_loosen_of_kind_update_matches_parameter_names(bench: Bench) -> None:
    reference, perturbed, _ = bench.measures("float32")
    loosen = [Loosen("norm.*", 10, "why", kind="update")]
    assert_equivalent(candidate(bench), reference, perturbed=perturbed, loosen=loosen)


def test_accept_refuses_an_unknown_check(bench: Bench) -> None:
    reference, perturbed, _ = bench.measures("float32")
    with pytest.raises(ValueError, match=r"accept takes some of .*, not 'same-data'"):
        assert_equivalent(candidate(bench), reference, perturbed=perturbed, accept=["same-data"])


def test_a_program_that_casts_is_judged_by_the_rounding_of_the_narrower_dtype(bench: Bench) -> None:
    narrowed = {"narrowed": "float32 /src/loss.py:12"}
    reference = write(bench.path(), training("float32"), **narrowed)  # type: ignore[arg-type]
    perturbed = write(bench.path(), training("float32", 2**-23, 2))
    rounds = write(bench.path(), training("float32", 2**-24, 3), POINT)
    assert_equivalent(rounds, reference, perturbed=perturbed)
    edit = only("main_grad", "norm.weight", lambda r, at, p: 2 * p)
    bad = write(bench.path(), training("float32"), POINT, edit=edit)
    text = flat(report(bad, reference, perturbed=perturbed))
    assert "float64 was judged by the rounding of float32: the program casts to float32 at" in text
    assert "/src/loss.py:12" in text


def test_runs_of_different_dtypes_are_refused(bench: Bench) -> None:
    reference, perturbed, shadow = bench.measures("float32")
    wide = bench.measures("float64")[0]
    good = candidate(bench)
    pairs = [
        ((wide, reference), {}, "passed as `candidate`, was recorded in float64"),
        ((good, reference), {"perturbed": wide}, "passed as `perturbed`, was recorded in float64"),
        ((good, reference), {"shadow": perturbed}, "passed as `shadow`, was recorded in float32"),
    ]
    for traces, options, words in pairs:
        with pytest.raises(TraceError, match=words):
            assert_equivalent(*traces, **options)  # type: ignore[arg-type]
    assert shadow is not None


def test_truncated_trace_is_refused_with_its_file(bench: Bench) -> None:
    trace = candidate(bench)
    events = trace.path / "rank3" / "events.jsonl"
    events.write_bytes(events.read_bytes()[:-40])
    with pytest.raises(TraceError, match=r"rank3/events.jsonl is cut in the middle"):
        assert_equivalent(trace.path, bench.measures("float32")[0])


@pytest.mark.parametrize("content", [None, "{}", '{"format": "something else"}', "not json"])
def test_a_directory_that_is_not_a_trace_is_refused(
    bench: Bench, tmp_path: Path, content: str | None
) -> None:
    if content is not None:
        (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(TraceError, match=re.escape(str(tmp_path))):
        assert_equivalent(tmp_path, bench.measures("float32")[0])


def test_a_report_names_the_point_of_a_reference_on_several_ranks(bench: Bench) -> None:
    reference = write(bench.path(), training("float32"), Point.of(dp=2), "float32")
    perturbed = bench.measures("float32")[1]
    bad = candidate(bench, only("main_grad", "norm.weight", lambda r, at, p: 2 * p))
    text = report(bad, reference, perturbed=perturbed)
    assert text.startswith("trainsafe: model.train at tp=2 dp=2 differs from its reference at dp=2")


def test_a_trainsafe_failure_has_its_findings_as_data(bench: Bench) -> None:
    reference, perturbed, shadow = bench.measures("float32")
    bad = candidate(bench, only("main_grad", "norm.weight", lambda r, at, p: 2 * p))
    with pytest.raises(TrainsafeFailure) as failure:
        assert_equivalent(bad, reference, perturbed=perturbed, shadow=shadow)
    first = failure.value.findings[0]
    assert first.where is not None
    assert (first.verdict, first.where.kind, first.where.path) == (
        "fail",
        "main_grad",
        "norm.weight",
    )


def test_each_assertion_refuses_the_argument_types_of_the_other(bench: Bench) -> None:
    class Fixture:
        role = "candidate"

        def at(self, dtype: str) -> None: ...

        def prefetch(self, dtype: str) -> None: ...

    good = candidate(bench)
    with pytest.raises(TypeError, match="a fixture as its candidate; pass a recorded trace"):
        assert_equivalent(Fixture(), good)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="an object of type Trace as its candidate; pass the"):
        assert_trainsafe(good, good)  # type: ignore[arg-type]
