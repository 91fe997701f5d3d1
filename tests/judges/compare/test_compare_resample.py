"""A failure that a small noise sample may have caused is measured with more samples first."""

from __future__ import annotations

from typing import Any

from pytest_trainsafe.core.finding import Finding
from pytest_trainsafe.core.rungs.table import rung_named
from pytest_trainsafe.core.tensor_id import INITIAL, Kind, TensorId
from pytest_trainsafe.judges.compare.compare import compare
from pytest_trainsafe.judges.compare.comparison import Comparison
from pytest_trainsafe.judges.compare.ladder.ladder import climb
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.judges.compare.text.message import message_of
from pytest_trainsafe.judges.compare.tolerance.resample import ROUNDS, needs_samples, undecided
from pytest_trainsafe.trace.reader import Trace
from tests.support.compare.ladder_runs import POINT, Runs
from tests.support.compare.traces import (
    SINGLE,
    Bench,
    Edit,
    Record,
    draw,
    only,
    parameter,
    training,
    write,
)

#: The tensor whose first sample of rounding is small.
GRADIENT = "norm.weight"


class Sampled(Runs):
    """A reference of which one tensor's first sample of noise is small by luck."""

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench, {}, ())
        self.samples: list[int] = []

    def perturbed(self, dtype: str, sample: int = 0) -> Trace:
        self.samples.append(sample)
        key = f"{dtype} {sample}"
        if key not in self.bench.measured:
            edit = self._response(dtype, 0.01 if sample == 0 else 100)
            records = training(dtype, rung_named(dtype).epsilon, 10 + sample)
            trace = write(self.bench.path(), records, SINGLE, dtype, edit)
            self.bench.measured[key] = (trace, trace, None)
        return self.bench.measured[key][0]

    def _response(self, dtype: str, epsilons: float) -> Edit:
        """Replaces a tensor by the reference's, scaled so that it is off by this many epsilons."""
        own = {r.id: r.tensor for r in training(dtype, rung_named(dtype).epsilon, 1)}
        factor = 1 + epsilons * rung_named(dtype).epsilon
        return only("main_grad", GRADIENT, lambda record, at, part: own[record.id] * factor)


def climbed(bench: Bench, edit: Edit) -> tuple[str, list[int]]:
    """The report on a candidate with this fault, and the samples of noise that were requested."""
    candidate: Any = Runs(bench, {"float64": bench.rung(POINT, edit, "float64").candidate}, ())
    reference: Any = Sampled(bench)
    return message_of(climb(candidate, reference, [], ())), sorted(set(reference.samples))


def scaled(error: float) -> Edit:
    return only("main_grad", GRADIENT, lambda r, at, p: p * (1 + error))


def test_an_error_above_one_small_noise_sample_passes_if_further_samples_allow_it(
    bench: Bench,
) -> None:
    report, samples = climbed(bench, scaled(500 * rung_named("float64").epsilon))
    assert (report, samples) == ("", [0, 1, 2])


def test_an_error_above_every_noise_sample_fails_after_all_samples(bench: Bench) -> None:
    report, samples = climbed(bench, scaled(1e5 * rung_named("float64").epsilon))
    assert f"{GRADIENT} · main_grad · step 0" in report
    assert "rounding was measured by 8 samples of noise" in report
    assert samples == list(range(8))


def test_an_error_far_above_its_allowance_is_reported_after_one_sample(bench: Bench) -> None:
    report, samples = climbed(bench, scaled(1e-6))
    assert f"{GRADIENT} · main_grad · step 0" in report
    assert "samples of noise" not in report
    assert samples == [0]


def test_candidate_within_its_allowance_takes_one_sample(bench: Bench) -> None:
    report, samples = climbed(bench, scaled(0))
    assert (report, samples) == ("", [0])


def test_a_wrong_param_grad_after_an_insensitive_activation_grad_is_measured_again() -> None:
    """However large the error is: the noise response of a single number may be 0 by chance."""

    def failing(kind: Kind, insensitive: Kind) -> Comparison:
        lead = Finding(
            verdict="fail",
            judge="compare",
            check="norm",
            message="",
            where=TensorId(0, 1, kind, "fc2", "bias"),
            error=0.2,
            allowed=3e-15,
        )
        decided = TensorId(0, 0, insensitive, "fc2", "output")
        return Comparison("float64", [lead], insensitive=[decided])

    first, _, last = ROUNDS
    assert needs_samples(failing("param_grad", "activation_grad"), first)
    assert not needs_samples(failing("param_grad", "activation_grad"), last)
    assert not needs_samples(failing("param_grad", "activation"), first)
    assert not needs_samples(failing("activation", "activation_grad"), first)


def test_a_failure_near_its_allowance_after_a_flipped_update_is_inconclusive() -> None:
    def found(step: int, error: float, check: str = "norm", allowed: float = 0.1) -> Finding:
        where = TensorId(step, 0, "activation", "fc1", "output")
        return Finding(
            verdict="fail",
            judge="compare",
            check=check,
            message="",
            where=where,
            error=error,
            allowed=allowed,
        )

    kept = [found(0, 0.3), found(1, 0.5), found(1, 0.3, "shape"), found(1, 0.3, allowed=0.0)]
    comparison = Comparison("bfloat16", [found(1, 0.3), *kept], flipped_in=0)
    undecided(comparison)
    assert [finding.verdict for finding in comparison.findings] == ["inconclusive", *["fail"] * 4]
    assert comparison.findings[0].check == "diverged"
    assert comparison.findings[1:] == kept
    steady = Comparison("bfloat16", [found(1, 0.3)])
    undecided(steady)
    assert steady.failed


def test_a_comparison_notes_the_step_in_which_rounding_flipped_an_update(bench: Bench) -> None:
    def records(sign: float) -> list[Record]:
        gradient, start = draw("gradient", (8,)), draw("start", (8,))
        gradient[2] = sign * 1e-17
        return [
            Record(parameter("param", "fc1.bias", INITIAL), start),
            Record(parameter("main_grad", "fc1.bias", 0), gradient),
            Record(parameter("param", "fc1.bias", 0), start - 0.01 * gradient.sign()),
        ]

    reference, turned = (write(bench.path(), records(sign)) for sign in (1, -1))
    assert compare(RungTraces("float64", turned, reference, reference)).flipped_in == 0
    assert compare(RungTraces("float64", reference, reference, reference)).flipped_in is None
