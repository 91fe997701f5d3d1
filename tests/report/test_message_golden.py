"""Whole reports equal their snapshots in `__snapshots__`, with at most 100 columns."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from pytest_trainsafe.core.finding import Finding, Pattern
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.judges.compare.comparison import Comparison
from pytest_trainsafe.judges.compare.judgement import RungJudgement
from pytest_trainsafe.judges.compare.text.message import failure_message
from pytest_trainsafe.judges.loosen import Loosen

NODE = "tests/test_gpt.py::test_gpt[tp2-sp]"
NORM = TensorId(0, 0, "param_grad", "decoder.layers.0.input_layernorm", "weight")
REDUCED = TensorId(0, None, "main_grad", "decoder.layers.0.input_layernorm", "weight")
FC1 = TensorId(0, None, "main_grad", "decoder.layers.0.mlp.linear_fc1", "weight")
FC2 = TensorId(0, None, "main_grad", "decoder.layers.0.mlp.linear_fc2", "weight")
COUNTS = {"activation": 45, "loss": 1, "param_grad": 46, "main_grad": 46}


@pytest.fixture(autouse=True)
def _in_the_project(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def difference(where: TensorId | None = NORM, **fields: object) -> Finding:
    given = {
        "verdict": "fail",
        "judge": "compare",
        "check": "norm",
        "message": "",
        "where": where,
        "dtype": "float32",
        "error": 0.41,
        "allowed": 3.2e-6,
        "module_class": "ParallelLayerNorm",
        "source": str(Path.cwd() / "models" / "norm.py") + ":41",
    }
    return Finding(**{**given, **fields})  # type: ignore[arg-type]


def doubt(check: str, message: str, where: TensorId | None = None) -> Finding:
    return Finding(
        verdict="inconclusive", judge="vacuity", check=check, message=message, where=where
    )


def judged(
    *findings: Finding,
    dtype: str = "float32",
    doubts: tuple[Finding, ...] = (),
    accepted: tuple[Finding, ...] = (),
    loosened: tuple[tuple[TensorId, Loosen], ...] = (),
    **fields: Any,
) -> RungJudgement:
    comparison = Comparison(
        dtype, list(findings), compared=Counter(COUNTS), loosened=list(loosened)
    )
    return RungJudgement(
        dtype=dtype,
        rounding=fields.pop("rounding", dtype),
        comparison=comparison,
        doubts=list(doubts),
        accepted=list(accepted),
        **fields,
    )


def report(*entries: RungJudgement, point: str = "tp=2 sp=True", node: str = NODE) -> str:
    text = failure_message("gpt.train", point, entries, node)
    for line in text.splitlines():
        assert len(line) <= 100, line
        assert line == line.rstrip(), line
    return text


SUM = Pattern(
    "partial sum",
    "the ranks of tp hold partial sums: rank0 + rank1 equals the reference (to 2.1e-07)",
    "tp",
    "an all-reduce over tp is missing for this gradient",
)


def test_failure_with_a_pattern(snapshot: SnapshotAssertion) -> None:
    text = report(judged(dtype="float64"), judged(difference(pattern=SUM)))
    assert text == snapshot


def test_failure_without_a_pattern_shows_its_position_and_later_failures(
    snapshot: SnapshotAssertion,
) -> None:
    confined = Pattern("confined", "wrong only in row 7 of 24 in dimension 0")
    replicas = difference(
        judge="align",
        check="replicas",
        message="replicas over tp differ: ranks 1 from rank 0; layout from attribute: whole on "
        "every rank",
        error=None,
        allowed=None,
    )
    later = [
        difference(REDUCED, pattern=SUM),
        difference(FC1, error=1e-3),
        *(
            difference(TensorId(0, None, "main_grad", f"layer{n}", "weight"), order=n)
            for n in range(3)
        ),
    ]
    first = difference(
        check="slice",
        message="only index 7 of the 24 in dimension 0 is wrong",
        error=4.1e-5,
        pattern=confined,
    )
    text = report(judged(replicas, first, *later))
    assert text == snapshot


def test_an_inconclusive_report_starts_with_one_cause(snapshot: SnapshotAssertion) -> None:
    zeros = doubt("zeros", "9 of 9 weights of the reference start as zeros, such as fc1.weight")
    follow = [
        doubt("gradients", "every gradient of the reference is zero: nothing was trained"),
        doubt("moved", "no parameter of the reference moved in any step"),
        *(doubt(f"sensitive:{kind}", "rounding hides any bug") for kind in ("loss", "param_grad")),
    ]
    text = report(judged(dtype="float64", doubts=(*follow, zeros)), judged(doubts=(*follow, zeros)))
    assert text == snapshot


def test_inconclusive_names_each_doubt_once_with_its_dtypes(snapshot: SnapshotAssertion) -> None:
    same = doubt("dp-inputs", "ranks 0 and 2 of dp saw the same data")
    nans = [
        doubt("reference-finite", "3 of 8 values of the reference are not finite", id)
        for id in (NORM, REDUCED, FC1, FC2, *(TensorId(1, n, "loss", "", "loss") for n in range(2)))
    ]
    text = report(
        judged(dtype="float64", doubts=(same,)), judged(doubts=(same, *nans)), point="dp=2"
    )
    assert text == snapshot


def test_accepted_checks_and_loosened_tolerances_are_listed_in_a_failure() -> None:
    routers = Loosen("*.router.weight", 100, "top-k routing flips in low precision")
    accepted = doubt("dropout", "dropout 0.1 is on, but drew no random numbers on rank 0")
    text = report(
        judged(
            difference(pattern=SUM, source="", message=""),
            accepted=(accepted,),
            loosened=((TensorId(0, 0, "param_grad", "mlp.router", "weight"), routers),) * 2,
            reference="dp=2",
        ),
        node="",
    )
    assert text.splitlines()[0] == (
        "trainsafe: gpt.train at tp=2 sp=True differs from its reference at dp=2"
    )
    assert text.endswith(
        """
  compared      138 tensors in float32, with dp=2
  accepted      dropout: dropout 0.1 is on, but drew no random numbers on rank 0
  loosened      *.router.weight by 100 (for example mlp.router.weight): top-k routing flips in low
                precision"""
    )


def test_a_report_says_where_the_program_casts_float64_to_a_narrower_dtype() -> None:
    cast = f"float32 {Path.cwd() / 'models' / 'loss.py'}:12"
    text = report(judged(difference(), dtype="float64", rounding="float32", cast=cast))
    assert (
        "  precision     float64 was judged by the rounding of float32: the program casts to "
        "float32 at\n                models/loss.py:12"
    ) in text
    unknown = judged(
        difference(), dtype="float64", rounding="float32", cast="float32 the backward pass"
    )
    message = " ".join(report(unknown).split())
    assert "the program casts to float32 at the backward pass" in message


def test_a_failure_without_a_tensor_shows_its_message() -> None:
    steps = difference(None, check="steps", message="the candidate recorded 2 steps", source="")
    lines = report(judged(steps)).splitlines()
    assert lines[2] == "  what          the candidate recorded 2 steps"
    assert not any(line.startswith("  starts at") for line in lines)


def test_a_failure_in_float32_outweighs_a_doubt_in_float64() -> None:
    doubtful = judged(dtype="float64", doubts=(doubt("dropout", "drew nothing"),))
    text = report(doubtful, judged(difference(pattern=SUM)))
    assert "differs from its single-device reference" in text
    assert "  starts at" in text
