"""Small sizes in place of a test's own keep what equality may depend on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.core.point import AxisValue, Point
from pytest_trainsafe.errors import ArgumentError
from pytest_trainsafe.judges.exact.certificate import read
from pytest_trainsafe.judges.exact.command import HOLDS
from pytest_trainsafe.judges.exact.shapes import changed, reduced, size_branches, sizes_of
from pytest_trainsafe.reference_models import gpt, llama, moe
from pytest_trainsafe.sweep.case import Case
from pytest_trainsafe.sweep.program import resolve
from pytest_trainsafe.sweep.traits import sizes
from tests.support.exact.certify import Certify
from tests.support.exact.sized_program import PROGRAM

LLAMA = {"hidden": 4096, "heads": 32, "kv_heads": 8, "ffn": 11008, "layers": 30, "seq_len": 2048}
MOE = {"hidden": 1024, "heads": 16, "kv_heads": 8, "ffn": 2048, "layers": 8, "seq_len": 512}


@sizes("width")
def tiny(ctx: Any, width: int = 2) -> None: ...


@sizes("width", "depth")
def declared(ctx: Any, width: int = 512, depth: int = 100, steps: int = 7) -> None: ...


def case_of(program: Callable[..., Any], point: Point, **arguments: Any) -> Case:
    found = resolve(program)
    complete = found.complete(arguments)
    return Case(point, found, Settings(), complete, complete)


@pytest.mark.parametrize(
    ("program", "axes", "arguments"),
    [
        (gpt.train, {"tp": 8, "sp": True}, {"hidden": 4096, "heads": 32, "seq_len": 2048}),
        (gpt.train, {"tp": 2, "cp": 2, "pp": 2}, {"hidden": 768, "heads": 12, "seq_len": 1000}),
        (llama.train, {"tp": 2, "cp": 2}, LLAMA),
        (moe.train, {"dp": 2, "ep": 2, "tp": 2}, MOE),
    ],
)
def test_small_sizes_keep_order_equality_and_cuts(
    program: Any, axes: Mapping[str, AxisValue], arguments: Mapping[str, Any]
) -> None:
    case = case_of(program, Point.of(axes), **arguments)
    own = sizes_of(case)
    assert own.keys() >= {"hidden", "heads", "seq_len"}
    cut = [size for size in axes.values() if type(size) is int]

    (first, at_first), (second, at_second) = reduced(case)

    for small, at in ((first, at_first), (second, at_second)):
        assert {name: at.candidate_arguments[name] for name in small} == small
        assert max(small.values()) <= 512
        for name, size in small.items():
            assert 2 <= size <= own[name]
            for by in cut:
                assert (size % by == 0) == (own[name] % by == 0)
                assert own[name] // by < 2 or size // by >= 2
            for less, other in small.items():
                assert (size > other, size == other) == (
                    own[name] > own[less],
                    own[name] == own[less],
                )
    assert [name for name in ("hidden", "seq_len") if first[name] == second[name]] == []


def test_a_product_of_sizes_stays_a_product() -> None:
    case = case_of(llama.train, Point.of(tp=2), **LLAMA)

    for small, _ in reduced(case):
        assert small["hidden"] % small["heads"] == 0
        assert small["heads"] % small["kv_heads"] == 0
        assert small["seq_len"] % small["ffn"] != 0
        assert not [pair for pair in changed(sizes_of(case), small, case.point) if "ranks" in pair]


def test_sizes_are_those_that_are_declared_also_where_the_point_has_them_as_an_axis() -> None:
    point = Point.of({"tp": 4, "width": 512})
    case = Case(point, resolve(declared), Settings(), {}, {"width": 512})

    (first, at), (second, _) = reduced(case)

    assert (first, second) == ({"width": 12, "depth": 8}, {"width": 16, "depth": 12})
    assert at.point.get("width", 0) == 12
    assert "steps" not in at.candidate_arguments


def test_sizes_that_cannot_be_reduced_are_an_error() -> None:
    case = case_of(gpt.train, Point.of(tp=2), hidden=4096, heads=32)
    program = resolve(gpt.train)
    bare = program.__class__(program.path, parameters=program.parameters)
    with pytest.raises(ArgumentError, match="declares no sizes, and its rules read none"):
        reduced(Case(case.point, bare, Settings(), {}, {}))
    with pytest.raises(ArgumentError, match="no two configurations of sizes up to 512 keep"):
        reduced(case_of(tiny, Point.of(tp=2)))


def test_conditions_that_order_sizes_are_found_in_a_source_file(tmp_path: Path) -> None:
    source = tmp_path / "program.py"
    source.write_text(
        "def train(ctx, seq_len, flag):\n"
        "    if seq_len > 512:\n"
        "        pass\n"
        "    if flag and x.shape[0] <= 3: pass\n"
        "    y = 1 if len(x) < 9 else 2\n"
        "    if self.hidden == 4 or flag > 3: pass\n"
        "    while config.seq_len >= 2 * flag: pass\n"
    )

    assert size_branches(source, ["seq_len"]) == [
        "program.py:2: seq_len > 512",
        "program.py:4: flag and x.shape[0] <= 3",
        "program.py:5: len(x) < 9",
        "program.py:7: config.seq_len >= 2 * flag",
    ]
    source.write_text("if (")
    assert size_branches(source, ["seq_len"]) == []
    assert size_branches(tmp_path / "none.py", ["seq_len"]) == []


TEST = """
import pytest
from program import train
from pytest_trainsafe import assert_proved_equivalent


@pytest.mark.trainsafe(train, tp=2, bug=["rows for columns", "first column", "long"])
def test_small(candidate_trace, reference_trace):
    assert_proved_equivalent(candidate_trace, reference_trace, sizes="small")
"""


def test_bugs_are_refuted_at_small_sizes_and_a_branch_on_a_size_is_said_to_be_outside(
    pytester: pytest.Pytester, without_hypothesis: None, shared_fork_server: None, certify: Certify
) -> None:
    pytester.makepyfile(program=PROGRAM, test_it=TEST)

    result = pytester.runpytest_inprocess("--trainsafe-launcher", "threads", "--basetemp=base")

    result.assert_outcomes(passed=1, failed=2)
    text = result.stdout.str()
    assert "with rows=4 width=8 does not compute what its reference computes" in " ".join(
        text.replace("\nE ", " ").split()
    )
    assert "2 fail" in text
    found = sorted(Path(pytester.path).glob("**/*.certificate.json"))
    assert len(found) == 2
    first, second = map(read, found)
    assert {"rows": 48, "width": 96} == first.own_sizes == second.own_sizes
    given = [dict(each.candidate.spec.keywords) for each in (first, second)]
    assert {(each["rows"], each["width"]) for each in given} == {(4, 8), (6, 12)}
    outside = [each for each in first.not_covered if each.startswith("a branch on a size")]
    assert len(outside) == 1
    assert outside[0].endswith("wrong == 'long' and rows > 40")
    assert any(each.startswith("the test's own sizes, rows=48") for each in first.not_covered)
    status, _, err = certify(found[1])
    assert status == HOLDS, err
